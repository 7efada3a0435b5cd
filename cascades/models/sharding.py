"""Distribution of parameters and rows over devices, on one or several hosts.

Arrays get shardings, and nothing else changes: the compiled functions of
`decoding` are the same, and XLA inserts the communication. A mesh has two axes:

  data   Rows. Each device decodes its own rows, and devices communicate only to
         agree on the end of the loop.
  model  Heads, hidden units and vocabulary (Megatron, arXiv 1909.08053), for
         parameters that one device cannot hold, or to read them faster.

On several hosts, every process runs the same program on the same inputs, and
`fetch` returns the same outputs to each.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from cascades.models import language


class AxisSplit(NamedTuple):
  """The axes of a weight, divided for products."""

  free: tuple[int, ...]
  summed: tuple[int, ...]


# By the end of a parameter's path, the axis that devices divide, and the axes
# of a matrix in products. Others are small, and are copied to every device.
_TABLE = 0, AxisSplit((0,), (1,))
_AXES: dict[str, tuple[int, AxisSplit | None]] = {
  'input_embedding': _TABLE,
  language.RESTRICTED_TABLE: _TABLE,
  'qkv_einsum/w': (1, AxisSplit((0, 1, 3), (2,))),
  'q_einsum/w': (0, AxisSplit((0, 2), (1,))),
  'k_einsum/w': (0, AxisSplit((0, 2), (1,))),
  'kv_einsum/w': (1, AxisSplit((0, 1, 3), (2,))),
  'attn_vec_einsum/w': (0, AxisSplit((2,), (0, 1))),
  'gating_einsum': (2, AxisSplit((0, 2), (1,))),
  'linear': (0, AxisSplit((1,), (0,))),
  # Hidden units of each expert, so that all devices do equal work for any
  # expert.
  'gating_einsum/w': (2, None),
  'linear/w': (1, None),
  # Each device reads a part of a token's row.
  'per_layer_embeddings': (2, None),
  'per_layer_input_embedding': (2, None),
  'per_layer_model_projection/w': (2, None),
  'per_layer_input_projection/w': (2, None),
}
# `gating_einsum` in Hugging Face's order of axes.
_GATE_BY_ROWS = 1, AxisSplit((0, 1), (2,))
_name = functools.partial(jax.tree_util.keystr, simple=True, separator='/')


def make_mesh(data: int, model: int) -> Mesh:
  """Returns a mesh of the first `data * model` devices of all hosts.

  Neighbouring devices are along `model`, which communicates the most.
  """
  count, devices = data * model, jax.devices()
  if min(data, model) < 1 or count > len(devices):
    raise ValueError(
      'mesh: must be two numbers of at least 1, whose product is at most the'
      f' {len(devices)} devices, got {data} x {model}.'
    )
  grid = np.array(devices[:count]).reshape(data, model)
  return Mesh(grid, ('data', 'model'))


def param_axes(
  model: Any, path: tuple[Any, ...]
) -> tuple[int | None, AxisSplit | None]:
  """Returns the axis that devices divide, and the axes of a matrix."""
  name = f'/{_name(path)}'
  if name.endswith('/gating_einsum') and model.gate_by_rows:
    return _GATE_BY_ROWS
  axes = (x for end, x in _AXES.items() if name.endswith(f'/{end}'))
  return next(axes, (None, None))


def shard_params(model: Any, params: PyTree, mesh: Mesh) -> PyTree:
  """Divides parameters along `model`; copies what cannot be divided evenly."""
  return jax.tree.map(_with_sharding, params, layout(model, params, mesh))


def layout(model: Any, params: PyTree, mesh: Mesh) -> PyTree:
  """Returns the shardings of `shard_params`."""

  def shard(path, x):
    axis, axes = param_axes(model, path)

    def shard_part(part):
      at = axis
      if is_packed(x):
        at = x.weight.axis(part, axes, axis, mesh.shape['model'])
      return _sharding(
        part, [] if at is None else [None] * at + ['model'], mesh
      )

    return jax.tree.map(shard_part, x)

  return jax.tree_util.tree_map_with_path(shard, params, is_leaf=is_packed)


def is_packed(x: Any) -> bool:
  """True for a matrix in a layout of `cascades.contrib.cpu`."""
  return isinstance(x, meta.AxisMetadata)


def shard_rows(rows: PyTree, mesh: Mesh) -> PyTree:
  """Divides rows along the mesh's `data` axis.

  Caches are divided along `model` too, by their heads. Arrays that cannot be
  divided evenly are copied to every device.
  """

  def shard(path, x):
    names = ['data']
    # [B, 1, T, K, h]: `LanguageModel.init_cache` under `vmap`.
    if _name(path[-1:]) in ('k', 'v') and np.ndim(x) == 5:
      names = ['data', None, None, 'model']
    return _with_sharding(x, _sharding(x, names, mesh))

  return jax.tree_util.tree_map_with_path(shard, rows)


def fetch(tree: PyTree) -> PyTree:
  """Returns a tree with NumPy arrays of all leaves, on every host.

  On several hosts, all of them must call it, and arrays that span hosts must be
  on one mesh. Random keys cannot be fetched.
  """
  leaves, treedef = jax.tree.flatten(tree)
  remote = [i for i, x in enumerate(leaves) if not _is_here(x)]
  if remote:
    replicated = NamedSharding(leaves[remote[0]].sharding.mesh, PartitionSpec())
    # Gathers all leaves at once, so that hosts wait for each other once.
    gather = jax.jit(_identity, out_shardings=replicated)
    for i, x in zip(remote, gather([leaves[i] for i in remote]), strict=True):
      leaves[i] = x
  return jax.device_get(jax.tree.unflatten(treedef, leaves))


# One function, so that `jax.jit` caches it.
def _identity(x: Any) -> Any:
  return x


def _is_here(x: Any) -> bool:
  return getattr(x, 'is_fully_addressable', True)


def _sharding(x, names, mesh: Mesh) -> NamedSharding:
  """Returns a sharding by the mesh axes that divide an axis evenly."""
  sizes = {None: 1, **mesh.shape}
  spec = [
    name if sizes[name] > 1 and size % sizes[name] == 0 else None
    for name, size in zip(names, np.shape(x), strict=False)
  ]
  # JAX's own specs have no trailing None. An equal spec avoids moving outputs
  # of compiled functions, and compiling again.
  while spec and spec[-1] is None:
    spec.pop()
  return NamedSharding(mesh, PartitionSpec(*spec))


def _with_sharding(x: Any, sharding: NamedSharding) -> jax.Array:
  """Returns an array with a sharding; each host provides its own copy."""
  if sharding.is_fully_addressable:
    return jax.device_put(x, sharding)
  if not _is_here(x):
    # `device_put` moves nothing between hosts.
    is_there = x.sharding.is_equivalent_to(sharding, x.ndim)
    return x if is_there else jax.jit(_identity, out_shardings=sharding)(x)
  # `device_put` would compare the copies of all hosts, which takes another copy
  # of each, and it refuses arrays that are committed to a device.
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    data = _with_sharding(jax.random.key_data(x), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])
