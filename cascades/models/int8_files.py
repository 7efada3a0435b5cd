"""Matrices in eight bits in safetensors: integers, and a scale for each row.

The scales of a matrix have its name with `_scale`, as compressed-tensors
stores weights of format `int-quantized` and strategy `channel`. A matrix is
read as integers times scales, or as both.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cascades.models import tensor_files

# Suffixes of names of tensors, after the name of their matrix.
SCALE, _ZERO_POINT = '_scale', '_zero_point'
_FORMAT = 'int-quantized'


def is_int8(config: Mapping[str, Any]) -> bool:
  """Returns True if a config.json declares matrices in eight bits."""
  fields = config.get('quantization_config')
  return isinstance(fields, Mapping) and fields.get('format') == _FORMAT


def quantization_config(ranks: Mapping[str, int]) -> dict[str, Any]:
  """Returns the field `quantization_config` of config.json.

  Weights have a scale for each output channel, and activations get one for
  each row as the model runs.
  """
  floats = [
    name.removesuffix('.weight')
    for name, rank in ranks.items()
    if rank > 1 and not name.endswith(SCALE) and name + SCALE not in ranks
  ]
  common = dict(num_bits=8, type='int', symmetric=True)
  group = dict(
    targets=['Linear', 'Embedding'],
    weights=dict(common, strategy='channel', dynamic=False),
    input_activations=dict(common, strategy='token', dynamic=True),
  )
  return dict(
    quant_method='compressed-tensors',
    format=_FORMAT,
    quantization_status='compressed',
    config_groups=dict(group_0=group),
    ignore=floats,
  )


class Int8Handle(tensor_files.TensorHandle):
  """A matrix in eight bits, read as floats; its parts can be read too."""

  def __init__(
    self,
    path: pathlib.Path,
    name: str,
    integers: tensor_files.TensorHandle,
    scales: tensor_files.TensorHandle,
  ):
    """Initializes the handle; reads nothing."""
    self.integers, self._scales = integers, scales
    self._path, self._name = path, name

    def read(first: int, last: int) -> np.ndarray:
      return integers[first:last] * self._read_scales(first, last)

    super().__init__(integers.shape, 'F32', read)

  def scales(self) -> np.ndarray:
    """Reads the scales, float32, [rows, 1]."""
    return self._read_scales(0, self.shape[0])

  def first_rows(self, count: int) -> 'Int8Handle':
    """Returns a handle of the first rows."""
    return Int8Handle(
      self._path,
      self._name,
      self.integers.first_rows(count),
      self._scales.first_rows(count),
    )

  def _read_scales(self, first: int, last: int) -> np.ndarray:
    """Reads the scales of the rows [first, last)."""
    scales = self._scales[first:last].astype(np.float32)
    if not (np.isfinite(scales) & (scales >= 0)).all():
      raise ValueError(
        f'model: in {self._path} the tensor {self._name} has scales that are'
        ' negative or not finite; fetch it again.'
      )
    return scales


def join_scales(
  folder: pathlib.Path, tensors: Mapping[str, tensor_files.TensorHandle]
) -> dict[str, tensor_files.TensorHandle]:
  """Joins matrices in eight bits with their scales."""
  joined = dict(tensors)
  for name in tensors:
    if name.endswith(_ZERO_POINT):
      raise ValueError(
        f'model: {folder} has {name}, and zero points are not supported; fetch'
        ' the model before quantisation, or with symmetric weights.'
      )
    matrix = name.removesuffix(SCALE)
    # Some parameters of Gemma 3n have such names too; float8 is refused later.
    stored = tensors[matrix].stored_type if matrix in tensors else 'F8'
    if matrix == name or stored.startswith('F8'):
      continue
    del joined[name]
    if not _fits(tensors[matrix], tensors[name]):
      raise ValueError(
        f'model: in {folder} the tensor {name} must be a column of scales for'
        f' {matrix} in eight bits; fetch or train it again.'
      )
    joined[matrix] = Int8Handle(folder, name, tensors[matrix], tensors[name])
  for name, tensor in joined.items():
    if tensor.stored_type == 'I8' and len(tensor.shape) == 2:
      raise ValueError(
        f'model: {folder} has {name} in eight bits without {name}{SCALE}, its'
        ' scales; fetch the model before quantisation, or fetch it again.'
      )
  return joined


def _fits(
  integers: tensor_files.TensorHandle, scales: tensor_files.TensorHandle
) -> bool:
  """Returns True for a matrix in eight bits and a scale for each row."""
  return (
    integers.stored_type == 'I8'
    and len(integers.shape) == 2
    and scales.is_weights
    and scales.shape == (integers.shape[0], 1)
  )
