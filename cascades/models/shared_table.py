"""Models that share another model's embedding table and emit some tokens.

Such a model is a drafter for a verifier that has none: a few layers, and
nothing else. Its folder has Hugging Face layout, without a table and without a
tokenizer; both belong to the model that reduced.json names:

  config.json         fields of the layers, as in any Hugging Face folder
  model.safetensors   the layers, and `vocabulary`, the ids that it can emit
  reduced.json        the owner of the table, and a checksum of some of its rows

Matrices may be rounded to eight bits; see `int8_files`.

The model is a language model like any other: it reads every token and can
decode alone. `experiments.training.reduced_folders` writes such folders.
"""

import pathlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import language, tensor_files
from cascades.untrusted.schema import Schema

FILE, VOCABULARY = 'reduced.json', 'vocabulary'
# Rows of a table that its checksum covers.
_CHECKED_ROWS = 256


class TableOwner(NamedTuple):
  """The fields of reduced.json."""

  verifier: str
  checksum: str


class _Fields(Schema):
  """The types of the fields of `TableOwner`."""

  verifier: str
  checksum: str


def read_owner(folder: pathlib.Path) -> TableOwner:
  """Returns the owner of the table that a folder shares."""
  file = folder / FILE
  fields = tensor_files.read_json(file)
  if fields is None:
    raise ValueError(f'model: {file} is missing; fetch it again.')
  checked = _Fields.check(fields, f'model: {file}')
  return TableOwner(checked.verifier, checked.checksum)


def read_vocab_ids(
  folder: pathlib.Path,
  tensors: Mapping[str, tensor_files.TensorHandle],
  vocab_size: int,
) -> np.ndarray:
  """Reads the ids of the tokens that a folder's model can emit."""
  tensor = tensors.get(VOCABULARY)
  # Checked before reading: NumPy lacks some types.
  is_readable = tensor is not None and tensor.is_ids and len(tensor.shape) == 1
  ids = np.asarray(tensor if is_readable else [])
  if (
    not len(ids)
    or ids.min() < 0
    or ids.max() >= vocab_size
    or (np.diff(ids) < 1).any()
  ):
    raise ValueError(
      f'model: in {folder} the tensor {VOCABULARY} must have increasing ids'
      f' below {vocab_size}; train it again.'
    )
  return ids


def checksum(model: language.LanguageModel, params: language.Params) -> str:
  """Returns a checksum of a model's embedding table.

  Rows are rounded to bfloat16 first, so that the checksum is the same for
  every order and dtype of the table.
  """
  tokens = np.arange(min(model.vocab_size, _CHECKED_ROWS))
  return _checksum(jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens))


def stored_checksum(
  model: language.LanguageModel, table: tensor_files.TensorHandle
) -> str:
  """Returns `checksum` of a table that was not read; eight bits lose it."""
  return _checksum(table[: min(model.vocab_size, _CHECKED_ROWS)])


def _checksum(rows: Any) -> str:
  """Returns a checksum of rows of any dtype."""
  rounded = np.asarray(rows).astype(jnp.bfloat16).astype(np.float32)
  return f'{zlib.crc32(rounded.tobytes()):08x}'
