"""Writes models that share the table of another; see `models.shared_table`."""

import pathlib

import jax.numpy as jnp
import numpy as np

from cascades import arguments, atomic
from cascades.models import (
  huggingface,
  language,
  param_mapping,
  shared_table,
  tensor_files,
)

STORED = 'bfloat16', 'float32', 'int8'


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


def check_stored(stored: str | None) -> None:
  """Refuses what layers cannot be rounded to.

  Raises:
    ValueError: It is neither None nor one of `STORED`.
  """
  if stored not in (None, *STORED):
    raise ValueError(
      f'stored: {arguments.quote(stored)} will not do; give'
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
  config = huggingface.make_config(model, params, (1,))
  tensors = {shared_table.VOCABULARY: np.asarray(tokens, np.int32)}
  for tensor in param_mapping.tensors(params, config, model.gate_by_rows):
    if tensor.name == param_mapping.TABLE_TENSOR:
      continue
    name, x = tensor.name, tensor.make()
    if stored == 'int8' and x.ndim == 2:
      x, tensors[name + shared_table.SCALE] = in_8_bits(x)
    elif stored and stored != 'int8':
      x = x.astype(jnp.dtype(stored))
    tensors[name] = x
  said = shared_table.TableOwner(
    verifier, shared_table.checksum(model, params)
  )._asdict()
  with atomic.replace_files(folder) as part:
    tensor_files.save_tensors(part / 'model.safetensors', tensors)
    for name, fields in (('config.json', config), (shared_table.FILE, said)):
      tensor_files.write_json(part / name, fields)
