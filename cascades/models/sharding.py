"""Many devices, on one host or several: where parameters and rows lie.

Arrays are given shardings and nothing else changes: the compiled functions of
`decoding` are the same, and XLA puts in what has to be exchanged. A mesh has
two axes:

  data   Rows. Each device decodes its own, and none waits for another but to
         agree on when the loop ends.
  model  Heads, hidden units and vocabulary (Megatron, arXiv 1909.08053), for
         parameters that one device cannot hold, or to read them faster.

On several hosts every process runs the same program on the same inputs, and
gets back, from `fetch`, the same outputs.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from cascades.models import blocked_layout, products

# By name, which axis of a matrix is split: of those that a product keeps and,
# after them, those that it sums over. A packed one has them in that order; see
# `blocked_layout`.
_MATRICES = {
  'input_embedding': 0,
  products.RESTRICTED_TABLE: 0,
  'qkv_einsum/w': 1,
  'q_einsum/w': 0,
  'k_einsum/w': 0,
  'kv_einsum/w': 1,
  'attn_vec_einsum/w': 1,
  'gating_einsum': 1,
  'linear': 1,
}
# By name and number of axes, how a leaf that is never packed is split. All
# that stand in neither table are small, and every device has them whole.
_PLAIN = {
  # Of experts, each one's hidden units: whichever a token is sent to, all
  # devices have the same to do.
  ('gating_einsum', 4): (None, None, 'model', None),
  ('linear', 3): (None, 'model', None),
  # One row of a table is read per token, a part of it from each device.
  ('per_layer_embeddings', 3): (None, None, 'model'),
  ('per_layer_input_embedding', 3): (None, None, 'model'),
  ('per_layer_model_projection', 3): (None, None, 'model'),
  ('per_layer_input_projection', 3): (None, None, 'model'),
}


def initialize(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the processes of several hosts; before anything else of JAX.

  On clusters that JAX knows (Cloud TPU, Slurm, Open MPI, Kubernetes) nothing
  need be given.

  Args:
    coordinator: 'host:port' of process 0, which all processes can reach.
    num_processes: How many there are.
    process_id: Which this is, from 0.

  Raises:
    ValueError: JAX cannot join them.
  """
  try:
    jax.distributed.initialize(coordinator, num_processes, process_id)
  except (ValueError, RuntimeError) as error:
    raise ValueError(
      f'coordinator: process {process_id} of {num_processes} could not join'
      f' {coordinator} ({str(error).strip().rstrip(".")}); give all three on'
      ' clusters that JAX does not know, once, before JAX is used.'
    ) from error


def make_mesh(data: int, model: int) -> Mesh:
  """A mesh of the first `data * model` devices of all hosts.

  Neighbours lie along `model`, which exchanges the most.

  Args:
    data: Parts that the rows are split in.
    model: Parts that the parameters are split in.

  Raises:
    ValueError: There are too few devices, or a number is less than 1.
  """
  if min(data, model) < 1:
    raise ValueError(
      f'mesh: {data} x {model} has no devices; give numbers of at least 1.'
    )
  count, devices = data * model, jax.devices()
  if count > len(devices):
    raise ValueError(
      f'mesh: {data} x {model} needs {count} devices, but there are'
      f' {len(devices)}; give numbers whose product is at most that.'
    )
  grid = np.array(devices[:count]).reshape(data, model)
  return Mesh(grid, ('data', 'model'))


def shard_params(model: Any, params: PyTree, mesh: Mesh) -> PyTree:
  """Parameters, split along the mesh's `model` axis.

  What cannot be split evenly is copied to every device instead.

  Args:
    model: The `language.LanguageModel` that they are of, packed or not.
      Parameters of any other model are copied.
    params: The checkpoint, or a part of it.
    mesh: From `make_mesh`.
  """
  return jax.tree.map(_put, params, layout(model, params, mesh))


def layout(model: Any, params: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
  """The shardings of `shard_params`; the shapes of parameters will do."""
  if not hasattr(model, 'pack'):
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: whole, params)

  def split(path, x):
    order = model.order(path)
    if order is not None:
      axis = _MATRICES[products.matrix_name(path)]
      axes = *order.kept, *order.summed
      if not model.packed:
        axis = axes[axis]
      elif blocked_layout.is_whole(x, order):
        axis = (*order.summed, *order.kept).index(axes[axis])
      elif axis == len(order.kept) - 1 and x.shape[axis] % mesh.shape['model']:
        # Columns of each panel, where panels do not come out even.
        axis = x.ndim - 1
      return _sharding(x, [None] * axis + ['model'], mesh)
    keys = ((name, np.ndim(x)) for name in products.tree_keys(path))
    names = next((_PLAIN[key] for key in keys if key in _PLAIN), ())
    return _sharding(x, names, mesh)

  return jax.tree_util.tree_map_with_path(split, params)


def shard_rows(rows: PyTree, mesh: Mesh) -> PyTree:
  """Rows, split along the mesh's `data` axis.

  Caches are split along `model` as well, by their heads. What cannot be split
  evenly is copied to every device instead; what lies there already stays.

  Args:
    rows: A batch of `decoding.SamplingState`, or anything of [B, ...] leaves.
    mesh: From `make_mesh`.
  """
  return jax.tree.map(_put, rows, rows_layout(rows, mesh))


def rows_layout(rows: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
  """The shardings of `shard_rows`; the shapes of rows will do."""

  def split(path, x):
    names = ['data']
    # [B, 1, T, K, h], as `LanguageModel.init_cache` makes them under `vmap`.
    if products.tree_keys(path)[-1:] in (['k'], ['v']) and np.ndim(x) == 5:
      names = ['data', None, None, 'model']
    return _sharding(x, names, mesh)

  return jax.tree_util.tree_map_with_path(split, rows)


def fetch(tree: PyTree) -> PyTree:
  """A tree's leaves as numpy arrays, whole, on every host.

  On several hosts, all of them have to call it, and what other hosts have is
  to lie on one mesh. Keys cannot be fetched.
  """
  leaves, treedef = jax.tree.flatten(tree)
  far = [
    i
    for i, x in enumerate(leaves)
    if not getattr(x, 'is_fully_addressable', True)
  ]
  if far:
    whole = NamedSharding(leaves[far[0]].sharding.mesh, PartitionSpec())
    # All at once: hosts wait for each other once, and not for every leaf.
    gather = jax.jit(_identity, out_shardings=whole)
    for i, x in zip(far, gather([leaves[i] for i in far]), strict=True):
      leaves[i] = x
  return jax.device_get(jax.tree.unflatten(treedef, leaves))


def _identity(x):
  # Has a name, so that `jax.jit` knows it again.
  return x


def _sharding(x, names, mesh: Mesh | AbstractMesh) -> NamedSharding:
  """Splits each axis by the mesh axis it names, where that divides it."""
  spec = [
    name
    if name and mesh.shape[name] > 1 and size % mesh.shape[name] == 0
    else None
    for name, size in zip(names, np.shape(x), strict=False)
  ]
  # As JAX itself writes specs, with nothing that says nothing: arrays that a
  # compiled function gave out are neither moved nor compiled for once more.
  while spec and spec[-1] is None:
    spec.pop()
  return NamedSharding(mesh, PartitionSpec(*spec))


def _put(x, sharding: NamedSharding) -> jax.Array:
  """The array with a sharding; on several hosts, from each one's own copy."""
  if sharding.is_fully_addressable or not getattr(
    x, 'is_fully_addressable', True
  ):
    return jax.device_put(x, sharding)
  # Here `device_put` would compare the copies of all hosts first, which takes
  # one more copy for each of them; and it takes no array tied to a device.
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    data = _put(jax.random.key_data(x), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])
