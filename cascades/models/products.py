"""How gemma's modules multiply here, and what is mended in them.

Matrices may be packed (see `blocked_layout`), and the embedding table may be
restricted to some tokens. Interceptors of flax apply both.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cascades.models import blocked_layout

# Beside the embedding table, the rows of the tokens that a model says, where it
# does not say all of them; and their ids.
RESTRICTED_TABLE, VOCAB_IDS = 'restricted_table', 'vocab_ids'
# Of matrices, by the end of the path to them: which axes come out of a product,
# and which it sums over. A mixture's experts end in `gating_einsum/w`.
ORDERS = {
  'input_embedding': blocked_layout.AxisSplit((0,), (1,)),
  'qkv_einsum/w': blocked_layout.AxisSplit((0, 1, 3), (2,)),
  'q_einsum/w': blocked_layout.AxisSplit((0, 2), (1,)),
  'k_einsum/w': blocked_layout.AxisSplit((0, 2), (1,)),
  'kv_einsum/w': blocked_layout.AxisSplit((0, 1, 3), (2,)),
  'attn_vec_einsum/w': blocked_layout.AxisSplit((2,), (0, 1)),
  'gating_einsum': blocked_layout.AxisSplit((0, 2), (1,)),
  'linear': blocked_layout.AxisSplit((1,), (0,)),
  RESTRICTED_TABLE: blocked_layout.AxisSplit((0,), (1,)),
}
# Where its matrices are transposed.
GATE_BY_ROWS = blocked_layout.AxisSplit((0, 1), (2,))


def decode(x: Float[Array, '*L D'], table: Any) -> Float[Array, '*L P']:
  """States by a table, packed or not, in float32.

  Rounded to bfloat16, tokens that are nearly as likely would be equally so.
  """
  if isinstance(table, blocked_layout.BlockedWeight):
    return blocked_layout.dot(x, table, jnp.float32)
  return jnp.dot(x, table.T, preferred_element_type=jnp.float32)


@contextlib.contextmanager
def intercepted(readers: Sequence[str] = ()) -> Iterator[str]:
  """Has gemma's modules multiply with what is packed, or reduced.

  They are compiled once for parameters of one structure and for what they
  leave behind, so that what is done here hangs on nothing else.

  Args:
    readers: Names of modules. What each is given is left behind by its name, in
      a collection that is to be mutable, under `states`.

  Yields:
    The name of the collection, another for other readers.
  """
  from flax import linen as nn

  tapped = '/'.join(['given', *readers])

  # What a mixture's router is to be given; see below.
  unnormed: list[Any] = []

  def instead(call, args, kwargs, context):
    module, name = context.module, context.method_name
    if name == '__call__' and module.name in readers:
      module.sow(tapped, 'states', args[0])
    if name == '__call__' and module.name == 'pre_ffw_norm':
      unnormed[:] = args
    if name == '__call__' and module.name == 'router_norm':
      # gemma 4.0.1 norms it twice, and so sends tokens to other experts than
      # the model was trained with; transformers, and gemma since, do not.
      args = tuple(unnormed)
    if name == 'decode' and hasattr(module, 'input_embedding_table'):
      table = module.get_variable('params', RESTRICTED_TABLE)
      table = module.input_embedding_table if table is None else table
      table = (
        table.unbox()
        if isinstance(table, blocked_layout.BlockedParam)
        else table
      )
      return decode(*args, table)
    if name == '__call__' and hasattr(module, 'weight_name') and len(args) == 2:
      weight = module.get_variable('params', module.weight_name)
      if isinstance(weight, blocked_layout.BlockedParam):
        return _einsum(*args, weight.unbox())
    return call(*args, **kwargs)

  with nn.intercept_methods(instead):
    yield tapped


def _einsum(
  equation: str, x: Array, weight: blocked_layout.BlockedWeight
) -> Array:
  """As `jnp.einsum` with a weight on the right; x ends in the summed axes."""
  (rows, letters), out = (
    side.split(',') if ',' in side else side for side in equation.split('->')
  )
  summed, kept = (
    ''.join(letters[axis] for axis in axes)
    for axes in (weight.order.summed, weight.order.kept)
  )
  rows = rows.removesuffix(summed)
  return jnp.einsum(f'{rows}{kept}->{out}', blocked_layout.dot(x, weight))


def tree_keys(path) -> list[str]:
  """The names on the way to a leaf."""
  return [
    str(getattr(entry, 'key', getattr(entry, 'name', entry))) for entry in path
  ]


def matrix_name(path) -> str | None:
  """The end of the path to a matrix that products read; None of other leaves.

  Args:
    path: As `jax.tree_util` gives it; of a packed matrix, also to a part of it.
  """
  keys = [key for key in tree_keys(path) if not key.startswith('[')]
  return next((k for k in (keys[-1], '/'.join(keys[-2:])) if k in ORDERS), None)


def as_one_batch(batch: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """A function of parameters and a batch, under `vmap` one of a larger batch.

  JAX has no `vmap` of `ragged_dot`, by which a mixture of experts sends each
  token to its own. A token's way does not hang on the others', so that rows
  may be read together as long as each keeps its own `end_index`.

  Args:
    batch: Takes parameters, which all rows share, and arrays of [B, ...].
  """

  @jax.custom_batching.custom_vmap
  def run(params, *rows):
    return batch(params, *rows)

  @run.def_vmap
  def rule(size, batched, params, *rows):
    of_params, *of_rows = batched
    if any(jax.tree.leaves(of_params)):
      raise ValueError(
        'params: a mixture of experts cannot be read with several sets of'
        ' parameters at once; give one after the other.'
      )

    def merge(x, is_batched):
      if not is_batched:
        x = jnp.broadcast_to(x, (size, *x.shape))
      return x.reshape(-1, *x.shape[2:])

    out = run(params, *jax.tree.map(merge, tuple(rows), tuple(of_rows)))
    out = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out)
    return out, jax.tree.map(lambda x: True, out)

  return run
