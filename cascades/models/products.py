"""Matrix products of gemma's modules, with packed and restricted weights.

Matrices may be in blocks (see `blocked_layout`) or in eight bits (see
`int8_weights`), and the embedding table may be restricted to some tokens. An
interceptor of flax replaces the products of gemma's modules while they are
applied.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from flax.core import meta
from jaxtyping import Array, Float

from cascades.models import blocked_layout, int8_weights
from cascades.models.patches import router_norm

# Beside the embedding table: the rows of the tokens that a model can emit, if
# its vocabulary is restricted, and the ids of these tokens.
RESTRICTED_TABLE, VOCAB_IDS = 'restricted_table', 'vocab_ids'
# Axes of matrices, by the end of their path: those of a product's result, and
# those that it sums over. The path of a mixture's experts ends in
# `gating_einsum/w`, which is not here.
AXIS_SPLITS = {
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
# Axes of `gating_einsum` in Hugging Face's order.
GATE_BY_ROWS = blocked_layout.AxisSplit((0, 1), (2,))


class Layout(NamedTuple):
  """A form of matrices that differs from gemma's."""

  pack: Callable[..., Any]
  unpack: Callable[..., Any]
  weight: type


LAYOUTS = {
  'blocked': Layout(
    blocked_layout.pack, blocked_layout.unpack, blocked_layout.BlockedWeight
  ),
  'int8': Layout(
    int8_weights.quantize, int8_weights.dequantize, int8_weights.Int8Weight
  ),
}
Weight = blocked_layout.BlockedWeight | int8_weights.Int8Weight


class PackedParam(struct.PyTreeNode, meta.AxisMetadata[Any]):
  """A matrix in another layout among the parameters of a flax module.

  flax unboxes it where the module reads the parameter.
  """

  parts: Any
  axes: blocked_layout.AxisSplit = struct.field(pytree_node=False)
  layout: str = struct.field(pytree_node=False)

  def unbox(self) -> Weight:
    """Returns the weight that the module reads."""
    return LAYOUTS[self.layout].weight(self.parts, self.axes)

  def replace_boxed(self, val: Any) -> 'PackedParam':
    """Returns another matrix with the same axes."""
    return self.replace(parts=val)

  def add_axis(self, index: int, params: dict[Any, Any]) -> 'PackedParam':
    """Refuses axes that flax adds, which no module here has."""
    raise NotImplementedError

  def remove_axis(self, index: int, params: dict[Any, Any]) -> 'PackedParam':
    """Refuses axes that flax removes, which no module here has."""
    raise NotImplementedError


def decode(x: Float[Array, '*L D'], table: Any) -> Float[Array, '*L P']:
  """Returns products of states with an embedding table, in float32.

  In bfloat16, tokens with similar logits would have equal ones.
  """
  if isinstance(table, Weight):
    return table.dot(x, jnp.float32)
  return jnp.dot(x, table.T, preferred_element_type=jnp.float32)


@contextlib.contextmanager
def intercept_modules(readers: Sequence[str] = ()) -> Iterator[str]:
  """Replaces products of gemma's modules with packed or restricted weights.

  Modules are compiled once for each structure of parameters and for each set
  of readers, and the replacement depends on nothing else.
  """
  from flax import linen as nn

  collection = '/'.join(['given', *readers])
  router = router_norm.RouterNorm()

  def intercept(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: nn.module.InterceptorContext,
  ) -> Any:
    module, method = context.module, context.method_name
    if method == 'decode' and hasattr(module, 'input_embedding_table'):
      table = module.get_variable('params', RESTRICTED_TABLE)
      table = module.input_embedding_table if table is None else table
      table = table.unbox() if isinstance(table, PackedParam) else table
      (x,) = args
      return decode(x, table)
    if method != '__call__':
      return call(*args, **kwargs)
    if module.name in readers:
      module.sow(collection, 'states', args[0])
    args = router.replace_args(module.name, args)
    if hasattr(module, 'weight_name') and len(args) == 2:
      weight = module.get_variable('params', module.weight_name)
      if isinstance(weight, PackedParam):
        equation, x = args
        return _einsum(equation, x, weight.unbox())
    return call(*args, **kwargs)

  with nn.intercept_methods(intercept):
    yield collection


def _einsum(
  equation: str,
  x: Array,
  weight: Weight,
) -> Array:
  """Returns `jnp.einsum(equation, x, weight)`."""
  operands, out = equation.split('->')
  rows, letters = operands.split(',')
  summed, free = (
    ''.join(letters[axis] for axis in axes)
    for axes in (weight.axes.summed, weight.axes.free)
  )
  rows = rows.removesuffix(summed)
  return jnp.einsum(f'{rows}{free}->{out}', weight.dot(x))


def tree_keys(path: Sequence[Any]) -> list[str]:
  """Returns the keys on the path to a leaf."""
  return [
    str(getattr(entry, 'key', getattr(entry, 'name', entry))) for entry in path
  ]


def matrix_name(path: Sequence[Any]) -> str | None:
  """Returns a key of `AXIS_SPLITS`; None for leaves that are never packed."""
  keys = [key for key in tree_keys(path) if not key.startswith('[')]
  names = keys[-1], '/'.join(keys[-2:])
  return next((name for name in names if name in AXIS_SPLITS), None)
