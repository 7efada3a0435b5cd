"""Files of matrices in eight bits, and of models that share a table.

Scales of a matrix have its name with `_scale`, as compressed-tensors stores
weights of format `int-quantized` and strategy `channel`. A matrix is read as
integers times scales, or as both.

A model that shares another model's embedding table is a few layers that draft
for a verifier, read every token and can decode alone. Its folder has Hugging
Face layout, with `vocabulary`, the ids that it can emit, but neither table nor
tokenizer; both belong to the model that reduced.json names, with a checksum of
the table. `experiments.training.layer_drafters` writes such folders.
"""

import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from cascades.contrib.cpu import blocked, int8
from cascades.files import Schema
from cascades.models import language, param_mapping, tensor_files
from cascades.models.language import LanguageModel, Params
from cascades.models.sharding import AxisSplit
from cascades.models.tensor_files import TensorHandle

# The end of names of scales, after the name of their matrix.
SCALE = '_scale'
VOCABULARY = 'vocabulary'
# Rows of a table that its checksum covers.
_CHECKED_ROWS = 256


def quantization_config(ranks: Mapping[str, int]) -> dict[str, Any]:
  """Returns the field of config.json, for the ranks of all tensors."""
  floats = [
    name.removesuffix('.weight')
    for name, rank in ranks.items()
    if rank > 1 and not name.endswith(SCALE) and name + SCALE not in ranks
  ]
  common = dict(num_bits=8, type='int', symmetric=True)
  # Activations get a scale for each row as the model runs.
  group = dict(
    targets=['Linear', 'Embedding'],
    weights=dict(common, strategy='channel', dynamic=False),
    input_activations=dict(common, strategy='token', dynamic=True),
  )
  return dict(
    quant_method='compressed-tensors',
    format='int-quantized',
    quantization_status='compressed',
    config_groups=dict(group_0=group),
    ignore=floats,
  )


class Int8Handle(TensorHandle):
  """A matrix in eight bits, read as floats; its parts can be read too."""

  def __init__(self, name: str, integers: TensorHandle, scales: TensorHandle):
    self.name, self.integers, self._scales = name, integers, scales

    def read(first: int, last: int) -> np.ndarray:
      return integers[first:last] * self.scales(first, last)

    super().__init__(integers.shape, 'F32', read)

  def scales(self, first: int = 0, last: int | None = None) -> np.ndarray:
    """Reads the scales of the rows [first, last), float32, [rows, 1]."""
    last = self.shape[0] if last is None else last
    scales = self._scales[first:last].astype(np.float32)
    if not (np.isfinite(scales) & (scales >= 0)).all():
      raise ValueError(
        f'model: the scales of {self.name} are negative or not finite; fetch'
        ' it again.'
      )
    return scales


def join_scales(
  folder: pathlib.Path, tensors: Mapping[str, TensorHandle]
) -> dict[str, TensorHandle]:
  """Joins matrices in eight bits with their scales."""
  joined = dict(tensors)
  for name, scales in tensors.items():
    matrix = name.removesuffix(SCALE)
    # Some parameters of Gemma 3n have such names too; float8 is refused later.
    integers = None if matrix == name else tensors.get(matrix)
    if integers is None or integers.stored_type.startswith('F8'):
      continue
    del joined[name]
    is_column = scales.dtype and scales.shape == (integers.shape[0], 1)
    if not (_is_int8_matrix(integers) and is_column):
      raise ValueError(
        f'model: in {folder} the tensor {name} must be a column of scales for'
        f' {matrix} in eight bits; fetch or train it again.'
      )
    joined[matrix] = Int8Handle(f'{matrix} in {folder}', integers, scales)
  for name, tensor in joined.items():
    if _is_int8_matrix(tensor) or name.endswith('_zero_point'):
      raise ValueError(
        f'model: {folder} has {name}, and eight bits without {SCALE} or with'
        ' zero points are not supported; fetch the model before quantisation,'
        ' or with symmetric weights.'
      )
  return joined


def _is_int8_matrix(tensor: TensorHandle) -> bool:
  return tensor.stored_type == 'I8' and len(tensor.shape) == 2


def read_rounded(
  mapping: param_mapping.ParamMapping, tensors: Sequence[TensorHandle]
) -> int8.Rounded:
  """Reads a leaf in eight bits; never holds all floats of a tensor."""
  parts = []
  for tensor in tensors:
    if isinstance(tensor, Int8Handle):
      values, scales = tensor.integers, tensor.scales()
    else:
      # The rows of a tensor are the output channels.
      axes = AxisSplit((0,), (1,))
      values, scales = int8.Int8Weight.pack(tensor, axes)
      scales = scales[:, None]
    parts.append((values, np.broadcast_to(scales, values.shape)))
  integers, scales = zip(*parts, strict=True)
  # Rows of a table are read as they are placed, other tensors one by one.
  if mapping.path != param_mapping.TABLE:
    integers = map(np.asarray, integers)
  return int8.Rounded(mapping.pack(integers), mapping.pack(scales))


def to_rounded(model: LanguageModel, params: Params) -> Params:
  """Returns parameters in gemma's order, with matrices in eight bits."""
  if model.layout != 'int8':
    params, model = model.unpack(params), model.with_layout('int8')
    params = model.pack(params)
  return blocked.map_packed(int8.to_gemma, params)


class _Owner(Schema):
  verifier: str
  checksum: str


def read_owner(folder: pathlib.Path) -> tuple[str, str]:
  """Returns the owner of the table that a folder shares, and its checksum."""
  file = folder / language.OWNER_FILE
  owner = _Owner.check(tensor_files.read_json(file), f'model: {file}')
  return owner.verifier, owner.checksum


def read_vocab_ids(
  folder: pathlib.Path, tensors: Mapping[str, TensorHandle], vocab_size: int
) -> np.ndarray:
  """Reads the ids of the tokens that a folder's model can emit."""
  tensor = tensors.get(VOCABULARY)
  # Checked before reading: NumPy lacks some types.
  is_readable = tensor is not None and tensor.is_ids and len(tensor.shape) == 1
  ids = np.asarray(tensor if is_readable else [])
  bounds = np.array([-1, *ids, vocab_size])
  if not len(ids) or (np.diff(bounds) < 1).any():
    raise ValueError(
      f'model: in {folder} the tensor {VOCABULARY} must have increasing ids'
      f' below {vocab_size}; train it again.'
    )
  return ids


def checksum(vocab_size: int, table: Any) -> str:
  """Returns a checksum of a table's first rows, which eight bits lose.

  Rows are rounded to bfloat16 first, so that it is the same for every dtype.
  """
  rows = table[: min(vocab_size, _CHECKED_ROWS)]
  rounded = np.asarray(rows).astype(jnp.bfloat16).astype(np.float32)
  return f'{zlib.crc32(rounded.tobytes()):08x}'
