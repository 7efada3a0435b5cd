"""The engine of CPUs, and matrices in eight bits for every device.

blocked    the order of matrices that a CPU reads fastest
int8       matrices in eight bits
row_exact  results for a row that do not depend on other rows
stored     eight bits in safetensors; models that share a table

`models.language.cpu` imports it for the models that `load_model` opens.
"""

from collections.abc import Callable
from typing import Any

import jax

from cascades.contrib.cpu import int8, row_exact, stored
from cascades.contrib.cpu.blocked import BlockedWeight, PackedParam, map_packed
from cascades.models import sharding
from cascades.models.language import LanguageModel, Params

__all__ = ['int8', 'pack', 'row_exact', 'stored', 'unpack']
_LAYOUTS: dict[str | None, Any] = {
  'blocked': BlockedWeight,
  'int8': int8.Int8Weight,
}


def pack(
  model: LanguageModel, params: Params, place: Callable[[Any], Any]
) -> Params:
  """Returns parameters in the model's layout; places each array."""
  weight = _LAYOUTS[model.layout]

  def pack_leaf(path, x):
    _, axes = sharding.param_axes(model, path)
    if axes is None:
      return place(x)
    return PackedParam(weight.pack(x, axes, place), axes, weight)

  is_leaf = lambda x: isinstance(x, int8.Rounded)  # noqa: E731
  return jax.tree_util.tree_map_with_path(pack_leaf, params, is_leaf=is_leaf)


def unpack(params: Params) -> Params:
  """Returns parameters in gemma's order."""
  return map_packed(lambda x: x.weight.unpack(x.parts, x.axes), params)
