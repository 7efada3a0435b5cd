"""Recurrent heads on disk: head.json and head.safetensors in a folder.

A head knows the verifier it was trained for by a fingerprint of its weights;
with another it would draft nonsense, and nothing would be wrong but the speed.
"""

import json
import pathlib
import zlib
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades import atomic
from cascades.decoding import BoundDrafter
from cascades.drafters.recurrent import recurrent_drafter
from cascades.models import checkpoints, param_dtypes, tensor_files
from cascades.untrusted import bounded
from cascades.untrusted.schema import Schema

BUNDLED = ('tiny-recurrent',)
_FILE, _SAYS = 'head.json', 'vocabulary'
_ADVICE = (
  'save one with recurrent_checkpoint.save, or train one with'
  ' configs/train_recurrent.py'
)
# Embeddings that tell a verifier: it is looked at for every curve of a sweep.
_ROWS = 1024


def fingerprint(verifier: checkpoints.Checkpoint) -> str:
  """Of some of a verifier's embeddings, which its head shares, and last norm.

  The same whatever order the weights lie in, and whether they are float32 or
  the bfloat16 that those round to.
  """
  model, params, _ = verifier
  tokens = np.arange(min(model.vocab_size, _ROWS))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  parts = [
    zlib.crc32(np.asarray(jnp.asarray(x, jnp.bfloat16)).tobytes())
    for x in (rows, params['final_norm']['scale'])
  ]
  size = f'{model.vocab_size}x{rows.shape[1]}'
  return f'{size}-{parts[0]:08x}{parts[1]:08x}'


class Loaded(NamedTuple):
  """A head, and the verifier that it was trained for.

  Attributes:
    head: Its parameters, a tree as `recurrent_drafter.init_head` makes it.
    fingerprint: A hash of its verifier's weights.
    name: Where it came from.
    says: Ids of the tokens that it says, upwards; None for all.
  """

  head: recurrent_drafter.Head
  fingerprint: str
  name: str
  says: np.ndarray | None = None
  options = ('beam',)

  def bind(
    self, verifier: checkpoints.Checkpoint, beam: bool = False
  ) -> BoundDrafter:
    """Binds the head to its verifier.

    Args:
      verifier: The one that it was trained for.
      beam: Whether its drafts are those of a beam search.

    Raises:
      ValueError: It is another, or lacks a token that the head says.
    """
    found = fingerprint(verifier)
    if found != self.fingerprint:
      raise ValueError(
        f'drafter: {self.name} was trained for a verifier with the fingerprint'
        f' {self.fingerprint}, and this one has {found}; train a head for it'
        ' with configs/train_recurrent.py.'
      )
    params, size = verifier.params, verifier.model.vocab_size
    if self.says is not None and self.says[-1] >= size:
      raise ValueError(
        f'drafter: {self.name} says a token {self.says[-1]}, and its verifier'
        f' has {size} tokens; {_ADVICE}.'
      )
    if self.says is not None:
      params = verifier.model.restrict_vocab(params, self.says)
    drafter = recurrent_drafter.RecurrentDrafter(verifier.model, beam=beam)
    return BoundDrafter(drafter, (self.head, params))


def folder_of(name: str) -> pathlib.Path | None:
  """Where the head of that name is; None if it is no head."""
  if name in BUNDLED:
    return checkpoints.ASSETS / name
  folder = pathlib.Path(name)
  return folder if (folder / _FILE).is_file() else None


def save(
  folder: pathlib.Path | str,
  head: recurrent_drafter.Head,
  verifier: checkpoints.Checkpoint,
  says: np.ndarray | None = None,
) -> None:
  """Writes a head trained for a verifier.

  Args:
    folder: Made if it is not there.
    head: Its parameters.
    verifier: Whose states it was trained on.
    says: Ids of the tokens that it is to say, upwards; None for all.

  Raises:
    OSError: A file cannot be written; names it, and the folder stays as it was.
  """
  tensors = {name: np.asarray(x) for name, x in head.items()}
  if says is not None:
    tensors[_SAYS] = np.asarray(says, np.int32)
  said = {'kind': 'recurrent', 'verifier': fingerprint(verifier)}
  with atomic.replace_files(pathlib.Path(folder)) as part:
    tensor_files.save_tensors(part / 'head.safetensors', tensors)
    atomic.write_text(part / _FILE, json.dumps(said, indent=2) + '\n')


class _Fields(Schema):
  """What a folder says of its head."""

  kind: Literal['recurrent']
  verifier: str


def load(folder: pathlib.Path | str, dtype: str | None = None) -> Loaded:
  """Reads a head.

  Args:
    folder: As `save` writes it.
    dtype: What its parameters become; None for what they are stored in, or
      float32 where that is float16.

  Raises:
    ValueError: It is not whole.
  """
  checkpoints.check_dtype(dtype)
  folder = pathlib.Path(folder)
  file = folder / _FILE
  try:
    fields = bounded.read_fields(file, 'drafter', _ADVICE)
    said = _Fields.check(fields, f'drafter: {file}', _ADVICE)
  except FileNotFoundError:
    raise ValueError(f'drafter: there is no {file}; {_ADVICE}.') from None
  try:
    head, says = _tensors(folder / 'head.safetensors')
  except (OSError, ValueError) as e:
    raise ValueError(
      f'drafter: {folder} cannot be read as a recurrent head ({e}); {_ADVICE}.'
    ) from e
  head = param_dtypes.device_put_params(head, dtype, path=folder)
  return Loaded(head, said.verifier, folder.name, says)


def _tensors(
  file: pathlib.Path,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """The parameters of a head, and the ids of what it says, if it says some.

  Raises:
    ValueError: They are not those of a head.
  """
  there = tensor_files.open_file(file)
  says = there.pop(_SAYS, None)
  # Before anything is read: of some types NumPy has none.
  if not all(x.is_weights for x in there.values()):
    raise ValueError('its tensors are no weights')
  if not {'state', 'mix'} <= there.keys():
    raise ValueError('it has no tensors of a recurrent head')
  size, layers = (there[name].shape[:1] for name in ('state', 'mix'))
  # Of empty tensors a file may say any shape.
  if not size or not layers or not all(there['state'].shape):
    raise ValueError('it is no recurrent head')
  want = jax.eval_shape(
    lambda: recurrent_drafter.init_head(jax.random.key(0), *size, *layers)
  )
  shapes = ({k: x.shape for k, x in of.items()} for of in (want, there))
  if next(shapes) != next(shapes):
    raise ValueError('it is no recurrent head')
  ids = None
  if says is not None:
    fits = says.is_ids and len(says.shape) == 1
    ids = np.asarray(says if fits else [])
    if not len(ids) or ids[0] < 0 or (ids[1:] <= ids[:-1]).any():
      raise ValueError(f'{_SAYS} are no ids in order')
  return {name: np.asarray(x) for name, x in there.items()}, ids
