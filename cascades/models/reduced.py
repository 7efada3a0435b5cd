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
"""

import pathlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, atomic
from cascades.models import huggingface, language, param_mapping, tensor_files

FILE, VOCABULARY = 'reduced.json', 'vocabulary'
STORED = 'bfloat16', 'float32', 'int8'
# What the scales of a matrix in 8 bits are called, after its own name.
_SCALE = '_scale'
# Rows of a table that tell it from another.
_ROWS = 256


class Said(NamedTuple):
  """What reduced.json says.

  Attributes:
    verifier: Whose table it is: a name that `load_model` takes, or a folder or
      file.
    checksum: Of some rows of that table.
  """

  verifier: str
  checksum: str


def read(folder: pathlib.Path) -> Said | None:
  """What a folder says of its table; None if it has one of its own.

  Raises:
    ValueError: The file is damaged.
  """
  if not folder.is_dir():
    return None
  said = tensor_files.read_json(folder / FILE)
  if said is None:
    return None
  try:
    return Said(str(said['verifier']), str(said['checksum']))
  except KeyError:
    raise ValueError(
      f'model: {folder / FILE} is damaged; fetch it again.'
    ) from None


def vocabulary(
  folder: pathlib.Path, places: Mapping[str, tensor_files.Rows], size: int
) -> np.ndarray:
  """The ids of what a folder's model says.

  Args:
    folder: For errors.
    places: Where its tensors are; see `tensor_files.places`.
    size: Tokens that there are.

  Raises:
    ValueError: They are missing, or no ids.
  """
  found = places.get(VOCABULARY)
  # Of one number alone, there are no rows.
  ids = np.asarray(found if found is not None and found.shape else [])
  fits = ids.ndim == 1 and ids.dtype.kind == 'i' and len(ids)
  if not fits or ids.min() < 0 or ids.max() >= size or (np.diff(ids) < 1).any():
    raise ValueError(
      f'model: {folder} has no {VOCABULARY} of ids in order, below {size};'
      ' train it anew.'
    )
  return ids


def places(folder: pathlib.Path) -> dict[str, tensor_files.Rows]:
  """Where a folder has its tensors; as `tensor_files.places` gives it.

  Raises:
    ValueError: A file is missing or damaged, or has scales that fit no matrix.
  """
  where = tensor_files.places(folder)
  scales = {name for name in where if name.endswith(_SCALE)}
  for name in scales:
    matrix = name.removesuffix(_SCALE)
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
  numbers: tensor_files.Rows, scales: tensor_files.Rows
) -> tensor_files.Rows | None:
  """A matrix in 8 bits, multiplied; None if there is no scale for each row."""
  kinds = numbers.kind, scales.kind
  if kinds != ('I8', 'F32') or len(numbers.shape) != 2:
    return None
  if scales.shape != (numbers.shape[0], 1):
    return None

  def read(first: int, last: int) -> np.ndarray:
    return numbers[first:last] * scales[first:last]

  return tensor_files.Rows(numbers.shape, 'F32', read)


def in_8_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """A matrix as whole numbers from -127 to 127, and a scale for each row.

  Args:
    matrix: [rows, columns].

  Returns:
    int8 [rows, columns]; float32 [rows, 1]. Their product is off by half a
    scale at most, a 254th of the largest of a row.
  """
  matrix = np.asarray(matrix, np.float32)
  scales = np.abs(matrix).max(1, keepdims=True) / np.float32(127)
  # A row of zeros has no scale of its own.
  scales = np.where(scales > 0, scales, np.float32(1))
  return np.rint(matrix / scales).astype(np.int8), scales


def checksum(model: language.LanguageModel, params: language.Params) -> str:
  """Tells a table from others, whatever order and numbers it is kept in.

  Rounded as the shortest of these are, so that it is the same of all.
  """
  tokens = np.arange(min(model.vocab_size, _ROWS))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  rounded = rows.astype(jnp.bfloat16).astype(jnp.float32)
  data = np.asarray(rounded).tobytes()
  return f'{zlib.crc32(data):08x}'


def check_stored(stored: str | None) -> None:
  """Refuses what layers cannot be rounded to.

  Raises:
    ValueError: It is neither None nor one of `STORED`.
  """
  if stored not in (None, *STORED):
    raise ValueError(
      f'stored: {arguments.shown(stored)} will not do; give'
      f' {", ".join(STORED[:-1])} or'
      f' {STORED[-1]}, or leave it out to take what they are.'
    )


def save(
  folder: str | pathlib.Path,
  model: language.LanguageModel,
  params: language.Params,
  tokens: np.ndarray,
  verifier: str,
  stored: str | None = None,
) -> None:
  """Writes a model without its table.

  Args:
    folder: Made if it is not there.
    model: A Gemma 2 or a Gemma 3, not packed.
    params: Its own, with the whole table, in gemma's order.
    tokens: Ids of what it says, upwards.
    verifier: Whose table it is: a name that `load_model` takes.
    stored: What the layers are rounded to, one of `STORED`; None for what they
      are. 'int8' is for matrices, and leaves vectors as they are.

  Raises:
    ValueError: `stored` is none of them.
    OSError: A file cannot be written; names it, and the folder stays as it was.
  """
  check_stored(stored)

  folder = pathlib.Path(folder)
  config = huggingface.config_of(model, params, (1,))
  tensors = {VOCABULARY: np.asarray(tokens, np.int32)}
  by_rows = model.gate_by_rows
  for leaf in param_mapping.leaves(config, by_rows):
    if leaf.path == param_mapping.TABLE:
      continue
    x = np.asarray(param_mapping.get(params, leaf.path))
    if stored and stored != 'int8':
      x = x.astype(jnp.dtype(stored))
    for name, part in zip(leaf.names, leaf.unpack(x), strict=True):
      if stored == 'int8' and part.ndim == 2:
        part, tensors[name + _SCALE] = in_8_bits(part)
      tensors[name] = np.ascontiguousarray(part)
  said = Said(verifier, checksum(model, params))._asdict()
  with atomic.replace_files(folder) as part:
    tensor_files.save_tensors(part / 'model.safetensors', tensors)
    for name, fields in (('config.json', config), (FILE, said)):
      tensor_files.write_json(part / name, fields)
