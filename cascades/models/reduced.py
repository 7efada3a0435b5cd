"""Models that share another's embedding table, and speak some of its tokens.

A drafter for a verifier that has none: a few layers of their own, and nothing
else. On disk it is a folder in Hugging Face layout without a table and without
a tokenizer, which are those of the model that reduced.json names:

  config.json         of the layers, as Hugging Face has it
  model.safetensors   the layers, and the ids of what it says, `vocabulary`
  reduced.json        whose table it is, and a checksum of some of it

It is a language model like any other: it reads every token, and answers alone.
"""

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import huggingface, language

FILE, VOCABULARY = 'reduced.json', 'vocabulary'
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
  said = huggingface.read_json(folder / FILE)
  if said is None:
    return None
  try:
    return Said(str(said['verifier']), str(said['checksum']))
  except KeyError:
    raise ValueError(
      f'model: {folder / FILE} is damaged; fetch it again.'
    ) from None


def vocabulary(
  folder: pathlib.Path, places: Mapping[str, tuple[Any, str]], size: int
) -> np.ndarray:
  """The ids of what a folder's model says.

  Args:
    folder: For errors.
    places: Where its tensors are; see `huggingface.places`.
    size: Tokens that there are.

  Raises:
    ValueError: They are missing, or no ids.
  """
  ids = np.empty(0, np.int32)
  if VOCABULARY in places:
    handle, name = places[VOCABULARY]
    found = handle.get_slice(name)
    # safetensors cannot slice what is empty.
    ids = np.asarray(found[:]) if min(found.get_shape(), default=0) else ids
  fits = ids.ndim == 1 and ids.dtype.kind == 'i' and len(ids)
  if not fits or ids.min() < 0 or ids.max() >= size or (np.diff(ids) < 1).any():
    raise ValueError(
      f'model: {folder} has no {VOCABULARY} of ids in order, below {size};'
      ' train it anew.'
    )
  return ids


def checksum(model: language.LanguageModel, params: language.Params) -> str:
  """Tells a table from others, whatever order and numbers it is kept in.

  Rounded as the shortest of these are, so that it is the same of all.
  """
  tokens = np.arange(min(model.vocab_size, _ROWS))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  rounded = rows.astype(jnp.bfloat16).astype(jnp.float32)
  data = np.asarray(rounded).tobytes()
  return f'{zlib.crc32(data):08x}'


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
    stored: What the layers are rounded to, 'bfloat16' or 'float32'; None for
      what they are.
  """
  from safetensors.numpy import save_file

  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  config = huggingface.config_of(model, params, (1,))
  tensors = {VOCABULARY: np.asarray(tokens, np.int32)}
  by_rows = model.gate_by_rows
  for leaf in huggingface.leaves(config, by_rows):
    if leaf.path == huggingface.TABLE:
      continue
    x = np.asarray(huggingface.get(params, leaf.path))
    x = x.astype(jnp.dtype(stored)) if stored else x
    parts = map(np.ascontiguousarray, leaf.unpack(x))
    tensors |= dict(zip(leaf.names, parts, strict=True))
  save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
  # safetensors lets nobody but the owner read what it writes.
  (folder / 'model.safetensors').chmod(0o644)
  said = Said(verifier, checksum(model, params))._asdict()
  for name, fields in (('config.json', config), (FILE, said)):
    text = json.dumps(fields, indent=2, sort_keys=True)
    (folder / name).write_text(text + '\n', encoding='utf-8')
