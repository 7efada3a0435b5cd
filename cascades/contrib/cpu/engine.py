"""The engine of a model whose matrices are in blocks or in eight bits.

A layout is a class with `pack` and `unpack`, whose values stand in the place of
arrays: `blocked.BlockedWeight`, `int8.Int8Weight`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import meta
from jaxtyping import Array, Float

from cascades.contrib.cpu import row_exact
from cascades.contrib.cpu.blocked import AxisSplit, BlockedWeight, PackedWeight
from cascades.contrib.cpu.int8 import Int8Weight
from cascades.models import language, sharding
from cascades.models.language import LanguageModel, Params

LAYOUTS = {'blocked': BlockedWeight, 'int8': Int8Weight}
_TABLE = AxisSplit((0,), (1,))
# Axes of matrices, by the end of their path. The path of a mixture's experts
# ends in `gating_einsum/w`, which is not here.
AXIS_SPLITS = {
  'input_embedding': _TABLE,
  language.RESTRICTED_TABLE: _TABLE,
  'qkv_einsum/w': AxisSplit((0, 1, 3), (2,)),
  'q_einsum/w': AxisSplit((0, 2), (1,)),
  'k_einsum/w': AxisSplit((0, 2), (1,)),
  'kv_einsum/w': AxisSplit((0, 1, 3), (2,)),
  'attn_vec_einsum/w': AxisSplit((2,), (0, 1)),
  'gating_einsum': AxisSplit((0, 2), (1,)),
  'linear': AxisSplit((1,), (0,)),
}
# Axes of `gating_einsum` in Hugging Face's order.
_GATE_BY_ROWS = AxisSplit((0, 1), (2,))


def axis_split(model: LanguageModel, path: Sequence[Any]) -> AxisSplit | None:
  """Returns the axes of a matrix; None for leaves that are never packed."""
  name = sharding.matrix_name(path, AXIS_SPLITS)
  if name == 'gating_einsum' and model.gate_by_rows:
    return _GATE_BY_ROWS
  return None if name is None else AXIS_SPLITS[name]


def map_matrices(
  model: LanguageModel,
  params: Params,
  matrix_function: Callable[..., Any],
  leaf_function: Callable[[Any], Any] = lambda x: x,
) -> Params:
  """Applies a function to each matrix that can be packed, and to its axes."""

  def apply(path, x):
    axes = axis_split(model, path)
    return leaf_function(x) if axes is None else matrix_function(x, axes)

  # A packed matrix may be a tuple of arrays.
  is_leaf = lambda x: isinstance(x, tuple)  # noqa: E731
  return jax.tree_util.tree_map_with_path(apply, params, is_leaf=is_leaf)


class PackedParam(struct.PyTreeNode, meta.AxisMetadata[Any]):
  """A packed matrix in a flax module, which unboxes it where it is read."""

  parts: Any
  axes: AxisSplit = struct.field(pytree_node=False)
  weight: type[PackedWeight] = struct.field(pytree_node=False)

  def unbox(self) -> PackedWeight:
    """Returns the weight that the module reads."""
    return self.weight(self.parts, self.axes)

  def replace_boxed(self, val: Any) -> 'PackedParam':
    """Returns another matrix with the same axes."""
    return self.replace(parts=val)

  def add_axis(self, index: int, params: dict[Any, Any]) -> 'PackedParam':
    """Refuses axes that flax adds, which no module here has."""
    raise NotImplementedError

  remove_axis = add_axis


class ExactEngine(language.Engine):
  """Products of gemma's, with results that do not depend on other rows."""

  def exact(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is row-exact, as all are in eight bits."""
    if self.is_row_exact or self.layout == 'int8':
      return row_exact.row_exact(function)
    return function


class PackedEngine(ExactEngine):
  """Products with matrices in a layout."""

  @property
  def _weight(self) -> Any:
    return LAYOUTS[str(self.layout)]

  def pack(
    self, model: LanguageModel, params: Params, place: Callable[[Any], Any]
  ) -> Params:
    """Packs each matrix."""
    pack = functools.partial(self._weight.pack, place=place)
    return map_matrices(model, params, pack, place)

  def unpack(self, model: LanguageModel, params: Params) -> Params:
    """Unpacks each matrix."""
    return map_matrices(model, params, self._weight.unpack)

  def box(self, model: LanguageModel, params: Params) -> Params:
    """Boxes each matrix for flax."""
    box = functools.partial(PackedParam, weight=self._weight)
    return map_matrices(model, params, box)

  def product(
    self, call: Callable[..., Any], module: Any, equation: str, x: Array
  ) -> Array:
    """Multiplies with a matrix if it is packed."""
    weight = module.get_variable('params', module.weight_name)
    if isinstance(weight, PackedParam):
      return weight.unbox().einsum(equation, x)
    return call(equation, x)

  def table(self, parts: Any) -> PackedWeight:
    """Returns a packed table as a weight."""
    return self._weight(parts, _TABLE)

  def take_rows(self, parts: Any, tokens: np.ndarray) -> Any:
    """Returns a packed table of some rows."""
    return self.table(parts).rows(tokens)

  def decode(self, x: Float[Array, '*L D'], table: Any) -> Float[Array, '*L P']:
    """Multiplies states with a table."""
    return table.dot(x, jnp.float32)

  def sharded_axis(
    self, model: LanguageModel, path: Any, x: Any, axis: int, devices: int
  ) -> int:
    """Returns the axis of a packed array that stands for a matrix's."""
    axes = axis_split(model, path)
    return self._weight.axis(x, axes, axis, devices)


def make_engine(layout: str | None, is_row_exact: bool = False) -> ExactEngine:
  """Returns the engine of a key of `LAYOUTS`, or of gemma's own layout."""
  return (PackedEngine if layout else ExactEngine)(layout, is_row_exact)
