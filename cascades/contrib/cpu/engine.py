"""Parameters of a model whose matrices are in blocks or in eight bits."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import struct
from flax.core import meta

from cascades.contrib.cpu.blocked import AxisSplit, BlockedWeight, PackedWeight
from cascades.contrib.cpu.int8 import Int8Weight
from cascades.models import language, sharding
from cascades.models.language import LanguageModel, Params

LAYOUTS: dict[str | None, Any] = {'blocked': BlockedWeight, 'int8': Int8Weight}
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

  def remove_axis(self, index: int, params: dict[Any, Any]) -> 'PackedParam':
    """Refuses axes that flax removes."""
    raise NotImplementedError


def pack(
  model: LanguageModel, params: Params, place: Callable[[Any], Any]
) -> Params:
  """Returns parameters in the model's layout; places each array."""
  function = functools.partial(LAYOUTS[model.layout].pack, place=place)
  return map_matrices(model, params, function, place)


def unpack(model: LanguageModel, params: Params) -> Params:
  """Returns parameters in gemma's order."""
  return map_matrices(model, params, LAYOUTS[model.layout].unpack)


def box(model: LanguageModel, params: Params) -> Params:
  """Returns parameters for flax."""
  function = functools.partial(PackedParam, weight=LAYOUTS[model.layout])
  return map_matrices(model, params, function)


def table(model: LanguageModel, parts: Any) -> PackedWeight:
  """Returns an embedding table as a weight."""
  return LAYOUTS[model.layout](parts, _TABLE)


def sharded_axis(
  model: LanguageModel, path: Any, x: Any, axis: int, devices: int
) -> int:
  """Returns the axis of a packed array that stands for a matrix's."""
  axes = axis_split(model, path)
  return LAYOUTS[model.layout].axis(x, axes, axis, devices)
