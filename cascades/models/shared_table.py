"""Models that share another's embedding table, and speak some of its tokens.

A drafter for a verifier that has none: a few layers of their own, and nothing
else. On disk it is a folder in Hugging Face layout without a table and without
a tokenizer, which are those of the model that reduced.json names:

  config.json         of the layers, as Hugging Face has it
  model.safetensors   the layers, and the ids of what it says, `vocabulary`
  reduced.json        whose table it is, and a checksum of some of it

Matrices may be rounded to 8 bits: whole numbers, and beside them under the name
with `_scale` what each row is multiplied by, as compressed-tensors has it for
`int-quantized` weights of strategy `channel`. They are read as the products.

It is a language model like any other: it reads every token, and answers alone.
Training one writes it; see `experiments.training.reduced_folders`.
"""

import pathlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import language, tensor_files
from cascades.untrusted.schema import Schema

FILE, VOCABULARY = 'reduced.json', 'vocabulary'
# What the scales of a matrix in 8 bits are called, after its own name.
SCALE = '_scale'
# Rows of a table that tell it from another.
_ROWS = 256


class TableOwner(NamedTuple):
  """What reduced.json says.

  Attributes:
    verifier: Whose table it is: a name that `load_model` takes, or a folder or
      file.
    checksum: Of some rows of that table.
  """

  verifier: str
  checksum: str


class _Fields(Schema):
  verifier: str
  checksum: str


def read(folder: pathlib.Path) -> TableOwner | None:
  """What a folder says of its table; None if it has one of its own.

  Raises:
    ValueError: The file is damaged.
  """
  if not folder.is_dir():
    return None
  fields = tensor_files.read_json(folder / FILE)
  if fields is None:
    return None
  said = _Fields.check(fields, f'model: {folder / FILE}')
  return TableOwner(said.verifier, said.checksum)


def vocabulary(
  folder: pathlib.Path,
  places: Mapping[str, tensor_files.TensorHandle],
  size: int,
) -> np.ndarray:
  """The ids of what a folder's model says.

  Args:
    folder: For errors.
    places: Where its tensors are; see `tensor_files.open_folder`.
    size: Tokens that there are.

  Raises:
    ValueError: They are missing, or no ids.
  """
  found = places.get(VOCABULARY)
  # Before it is read: of some types NumPy has none.
  fits = found is not None and found.is_ids and len(found.shape) == 1
  ids = np.asarray(found if fits else [])
  if (
    not len(ids)
    or ids.min() < 0
    or ids.max() >= size
    or (np.diff(ids) < 1).any()
  ):
    raise ValueError(
      f'model: {folder} has no {VOCABULARY} of ids in order, below {size};'
      ' train it anew.'
    )
  return ids


def places(folder: pathlib.Path) -> dict[str, tensor_files.TensorHandle]:
  """Where a folder has its tensors; as `tensor_files.open_folder` gives it.

  Raises:
    ValueError: A file is missing or damaged, or has scales that fit no matrix.
  """
  where = tensor_files.open_folder(folder)
  scales = {name for name in where if name.endswith(SCALE)}
  for name in scales:
    matrix = name.removesuffix(SCALE)
    if matrix not in where:
      continue
    where[matrix] = _scaled(where[matrix], where[name])
    if where[matrix] is None:
      raise ValueError(
        f'model: in {folder} the tensor {name} is no column of scales for'
        f' {matrix} in 8 bits; train it anew.'
      )
  return {name: rows for name, rows in where.items() if name not in scales}


def _scaled(
  numbers: tensor_files.TensorHandle, scales: tensor_files.TensorHandle
) -> tensor_files.TensorHandle | None:
  """A matrix in 8 bits, multiplied; None if there is no scale for each row."""
  kinds = numbers.kind, scales.kind
  if kinds != ('I8', 'F32') or len(numbers.shape) != 2:
    return None
  if scales.shape != (numbers.shape[0], 1):
    return None

  def read(first: int, last: int) -> np.ndarray:
    return numbers[first:last] * scales[first:last]

  return tensor_files.TensorHandle(numbers.shape, 'F32', read)


def checksum(model: language.LanguageModel, params: language.Params) -> str:
  """Tells a table from others, whatever order and numbers it is kept in.

  Rounded as the shortest of these are, so that it is the same of all.
  """
  tokens = np.arange(min(model.vocab_size, _ROWS))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  rounded = rows.astype(jnp.bfloat16).astype(jnp.float32)
  data = np.asarray(rounded).tobytes()
  return f'{zlib.crc32(data):08x}'
