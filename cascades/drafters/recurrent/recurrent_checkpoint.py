"""Recurrent heads on disk: head.json and head.safetensors in a folder.

A head records a fingerprint of the verifier that it was trained for, and is
refused with another verifier, which would reject most of its drafts.
"""

import json
import pathlib
import zlib
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades import atomic
from cascades.drafters.recurrent import recurrent_drafter
from cascades.drafters.recurrent.recurrent_spec import HEAD_FILE
from cascades.models import checkpoints, param_dtypes, tensor_files
from cascades.untrusted import bounded
from cascades.untrusted.schema import Schema

_VOCAB_IDS = 'vocabulary'
_ADVICE = (
  'save a head with recurrent_checkpoint.save, or train a head with'
  ' configs/train_recurrent.py'
)
# Embeddings of a fingerprint; few, since each curve of a sweep computes one.
_NUM_ROWS = 1024
# The end of a fingerprint: the hash of the norm, which eight bits keep.
_NORM = slice(-8, None)


def fingerprint(verifier: checkpoints.Checkpoint) -> str:
  """Returns a hash of a verifier's first embeddings and of its last norm.

  The hash does not depend on the layout of the weights, nor on whether they are
  float32 or the bfloat16 that these round to.
  """
  model, params, _ = verifier
  tokens = np.arange(min(model.vocab_size, _NUM_ROWS))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  parts = [
    zlib.crc32(np.asarray(jnp.asarray(x, jnp.bfloat16)).tobytes())
    for x in (rows, params['final_norm']['scale'])
  ]
  size = f'{model.vocab_size}x{rows.shape[1]}'
  return f'{size}-{parts[0]:08x}{parts[1]:08x}'


class RecurrentCheckpoint(NamedTuple):
  """A head, and the verifier that it was trained for."""

  head: recurrent_drafter.Head
  fingerprint: str
  name: str
  draft_vocab_ids: np.ndarray | None = None


def verifier_params(
  checkpoint: RecurrentCheckpoint, verifier: checkpoints.Checkpoint
) -> PyTree:
  """Returns the verifier's parameters as a head uses them."""
  actual = fingerprint(verifier)
  part = _NORM if verifier.model.layout == 'int8' else slice(None)
  if actual[part] != checkpoint.fingerprint[part]:
    raise ValueError(
      f'drafter: {checkpoint.name} was trained for a verifier with the'
      f' fingerprint {checkpoint.fingerprint}, but this verifier has {actual};'
      ' train a head for it with configs/train_recurrent.py.'
    )
  ids = checkpoint.draft_vocab_ids
  if ids is None:
    return verifier.params
  if ids[-1] >= verifier.model.vocab_size:
    raise ValueError(
      f'drafter: {checkpoint.name} must draft tokens below the vocabulary size'
      f' {verifier.model.vocab_size} of the verifier, got {ids[-1]}; {_ADVICE}.'
    )
  return verifier.model.restrict_vocab(verifier.params, ids)


def save(
  folder: pathlib.Path | str,
  head: recurrent_drafter.Head,
  verifier: checkpoints.Checkpoint,
  draft_vocab_ids: np.ndarray | None = None,
) -> None:
  """Writes a head that was trained for a verifier."""
  tensors = {name: np.asarray(x) for name, x in head.items()}
  if draft_vocab_ids is not None:
    tensors[_VOCAB_IDS] = np.asarray(draft_vocab_ids, np.int32)
  fields = {'kind': 'recurrent', 'verifier': fingerprint(verifier)}
  with atomic.replace_files(pathlib.Path(folder)) as part:
    tensor_files.save_tensors(part / 'head.safetensors', tensors)
    atomic.write_text(part / HEAD_FILE, json.dumps(fields, indent=2) + '\n')


class _Fields(Schema):
  """The fields of a head.json."""

  kind: Literal['recurrent']
  verifier: str


def load(
  folder: pathlib.Path | str, dtype: str | None = None
) -> RecurrentCheckpoint:
  """Reads a head."""
  checkpoints.check_dtype(dtype)
  folder = pathlib.Path(folder)
  file = folder / HEAD_FILE
  try:
    content = bounded.read_fields(file, 'drafter', _ADVICE)
    fields = _Fields.check(content, f'drafter: {file}', _ADVICE)
  except FileNotFoundError:
    raise ValueError(f'drafter: there is no {file}; {_ADVICE}.') from None
  try:
    head, draft_vocab_ids = _read_tensors(folder / 'head.safetensors')
  except (OSError, ValueError) as e:
    raise ValueError(
      f'drafter: {folder} cannot be read as a recurrent head ({e}); {_ADVICE}.'
    ) from e
  head = param_dtypes.device_put_params(head, dtype, path=folder)
  return RecurrentCheckpoint(
    head, fields.verifier, folder.name, draft_vocab_ids
  )


def _read_tensors(
  file: pathlib.Path,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Reads the parameters of a head, and the ids of the tokens it drafts."""
  tensors = tensor_files.open_file(file)
  stored_ids = tensors.pop(_VOCAB_IDS, None)
  # Checked before anything is read, as NumPy lacks some types.
  if not all(x.is_weights for x in tensors.values()):
    raise ValueError('its tensors must be floats of 16 bits or more')
  if not {'state', 'mix'} <= tensors.keys():
    raise ValueError('it lacks the tensor state or mix')
  size, layers = (tensors[name].shape[:1] for name in ('state', 'mix'))
  # The shape of an empty tensor may hold any number.
  if not size or not layers or not all(tensors['state'].shape):
    raise ValueError('its tensors state and mix must not be empty or scalars')
  expected = jax.eval_shape(
    lambda: recurrent_drafter.init_head(jax.random.key(0), *size, *layers)
  )
  expected_shapes, shapes = (
    {name: x.shape for name, x in tree.items()} for tree in (expected, tensors)
  )
  if expected_shapes != shapes:
    raise ValueError('its tensors have other names or shapes')
  ids = None
  if stored_ids is not None:
    fits = stored_ids.is_ids and len(stored_ids.shape) == 1
    ids = np.asarray(stored_ids if fits else [])
    if not len(ids) or ids[0] < 0 or (ids[1:] <= ids[:-1]).any():
      raise ValueError(f'{_VOCAB_IDS} must be a list of increasing ids')
  return {name: np.asarray(x) for name, x in tensors.items()}, ids
