"""The recurrent drafter: a small head on the verifier's last hidden state.

Cheng, Zhang et al. 2024, arXiv 2403.09919. With h the verifier's hidden state
that predicted the last token, e_t the embedding of a token and s_0 = h,

  s_t = silu(U s_{t-1} + W e_t + b)
  f_t = P [h; s_t],   f_t <- f_t + silu(M f_t)  for each layer
  logits_t = (the verifier's embedding table) f_t.

`step` is written for one sequence and one draft. Several drafts of a sequence
are a `vmap` of `step` over random numbers with one hidden state; a batch is a
`vmap` over sequences, and a beam search a `vmap` over beams.

head.json holds a fingerprint of the verifier that the head was trained for;
another one would reject most drafts, and is refused.
"""

import dataclasses
import functools
import json
import pathlib
import zlib
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades import files
from cascades.arguments import option
from cascades.decoding.drafter import BoundDrafter, full_length_draft
from cascades.decoding.model import Model
from cascades.drafters.stepwise import StepwiseDrafter
from cascades.drafters.unbound import UnboundDrafter
from cascades.files import Schema
from cascades.models import checkpoints, hub, param_dtypes, tensor_files

# A folder with this file holds a recurrent head.
_HEAD_FILE = 'head.json'
_VOCAB_IDS = 'vocabulary'
_ADVICE = 'save a head again, or train one with configs/train_recurrent.py'

Head = dict[str, Array]


def init_head(key: jax.Array, size: int, layers: int = 2) -> Head:
  """Returns a random head."""
  keys = iter(jax.random.split(key, 4))

  def matrix(*shape):
    return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

  return {
    'state': matrix(size, size),
    'input': matrix(size, size),
    'bias': jnp.zeros(size),
    'join': matrix(2 * size, size),
    'mix': 0.1 * matrix(layers, size, size),
  }


def read(
  model: Model,
  params: PyTree,
  head: Head,
  hidden: Float[Array, 'D'],
  state: Float[Array, 'D'],
  token: Int[Array, ''],
) -> tuple[Float[Array, 'D'], Float[Array, 'D']]:
  """Reads one token."""
  embedded = model.embed(params, token).astype(hidden.dtype)
  # Rows of Gemma's table have about unit length; states, unit variance.
  embedded = embedded * hidden.shape[-1] ** 0.5
  state = jax.nn.silu(
    state @ head['state'] + embedded @ head['input'] + head['bias']
  )
  features = jnp.concatenate([hidden, state]) @ head['join']
  for layer in head['mix']:
    features = features + jax.nn.silu(features @ layer)
  return state.astype(hidden.dtype), features.astype(hidden.dtype)


def step(model, params, head, hidden, state, token):
  """Reads one token as `read` does; returns the state and the logits [V]."""
  state, features = read(model, params, head, hidden, state, token)
  return state, model.unembed(params, features)


def draft_beams(
  model: Model,
  params: PyTree,
  head: Head,
  hidden: Float[Array, 'D'],
  *,
  token: Int[Array, ''],
  gamma: int,
  beams: int,
  draft_vocab_ids: Int[Array, 'N'] | None = None,
) -> tuple[Int[Array, 'K gamma_1'], Float[Array, 'gamma_1 K V']]:
  """Returns the drafts with the largest log-probabilities at temperature 1."""
  read_beam = jax.vmap(functools.partial(step, model, params, head, hidden))

  def extend(carry, _):
    states, tokens, scores = carry
    states, logits = read_beam(states, tokens)
    total = scores[:, None] + jax.nn.log_softmax(logits.astype(jnp.float32))
    scores, best = jax.lax.top_k(total.reshape(-1), beams)
    parents, tokens_after = jnp.divmod(best, logits.shape[-1])
    if draft_vocab_ids is not None:
      tokens_after = draft_vocab_ids[tokens_after]
    carry = states[parents], tokens_after, scores
    return carry, (tokens, logits, parents)

  def trace_back(beam, inputs):
    tokens, logits, parents = inputs
    # `beam` is the index after this step; its parent read this token.
    beam = parents[beam]
    return beam, (tokens[beam], logits[beam])

  start = (
    jnp.broadcast_to(hidden, (beams, *hidden.shape)),
    jnp.broadcast_to(token, (beams,)),
    # Only the first beam counts at first, as all beams are equal.
    jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf),
  )
  _, (tokens, logits, parents) = jax.lax.scan(extend, start, None, gamma + 1)
  # The last step adds logits only: its beams are those that it read.
  parents = parents.at[-1].set(jnp.arange(beams))
  _, (tokens, logits) = jax.lax.scan(
    trace_back, jnp.arange(beams), (tokens, logits, parents), reverse=True
  )
  return tokens.T, logits


@dataclasses.dataclass(frozen=True)
class RecurrentDrafter(StepwiseDrafter):
  """Drafts with a recurrent head; parameters are (the head's, the verifier's).

  The head does not see the text before the last token, except through the
  verifier's hidden state.
  """

  model: Model
  beam: bool = False

  @property
  def independent(self) -> bool:
    """True without a beam search, whose drafts depend on each other."""
    return not self.beam

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the head; its state is the hidden state."""
    head, params = params
    params, draft_vocab_ids = self.model.split_vocab_ids(params)
    fixed = self.model, params, head, context.hidden
    return functools.partial(step, *fixed), context.hidden, draft_vocab_ids

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts independent draws, or the best of a beam search."""
    if not self.beam:
      return super().propose(params, state, context, gamma=gamma, drafts=drafts)
    head, params = params
    params, draft_vocab_ids = self.model.split_vocab_ids(params)
    tokens, logits = draft_beams(
      self.model,
      params,
      head,
      context.hidden,
      token=context.tokens[context.length - 1],
      gamma=gamma,
      beams=drafts,
      draft_vocab_ids=draft_vocab_ids,
    )
    draft = full_length_draft(tokens[:, 1:], logits, gamma + 1, draft_vocab_ids)
    return draft, state, context.verifier_cache


@dataclasses.dataclass(frozen=True, eq=False)
class RecurrentHead(UnboundDrafter):
  """A recurrent head, which was trained for one verifier.

  Attributes:
    head: The parameters, as `init_head` makes them.
    fingerprint: The hash of the verifier.
    name: Name of the head, for errors.
    draft_vocab_ids: Increasing ids of the tokens that are drafted; None for
      all.
  """

  head: Head = dataclasses.field(repr=False)
  fingerprint: str
  name: str
  draft_vocab_ids: np.ndarray | None = None
  beam: bool = option(
    False,
    help='Several drafts are the best of a beam search instead of draws.',
    applies='recurrent heads',
  )
  syntax = 'tiny-recurrent, or a folder'
  description = 'a recurrent head that was trained for the verifier'
  known_names = ('tiny-recurrent',)
  reads_files = True

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a bundled head or a folder with a head.json."""
    is_bundled = name in cls.known_names
    return is_bundled or pathlib.Path(name, _HEAD_FILE).is_file()

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Reads a head; it is small, so the mesh is ignored."""
    checkpoints.check_dtype(dtype)
    if name in cls.known_names:
      name = checkpoints.ASSETS / name
    folder = pathlib.Path(hub.local_folder(name))
    try:
      content = files.read_fields(folder / _HEAD_FILE, 'drafter')
      fields = _Fields.check(content, _HEAD_FILE, 'train it again')
      head, draft_vocab_ids = _read_tensors(folder / 'head.safetensors')
    except (OSError, ValueError) as e:
      raise ValueError(
        f'drafter: {folder} cannot be read as a recurrent head ({e});'
        f' {_ADVICE}.'
      ) from e
    head = param_dtypes.device_put_params(head, dtype)
    return cls(head, fields.verifier, folder.name, draft_vocab_ids)

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the head to the verifier that it was trained for."""
    model, params, _ = verifier
    actual = fingerprint(verifier)
    # Eight bits keep the norm, whose hash is at the end.
    start = -8 if model.layout == 'int8' else 0
    if actual[start:] != self.fingerprint[start:]:
      raise ValueError(
        f'drafter: {self.name} was trained for a verifier with the fingerprint'
        f' {self.fingerprint}, but this verifier has {actual}; train a head for'
        ' it with configs/train_recurrent.py.'
      )
    ids = self.draft_vocab_ids
    if ids is not None:
      if ids[-1] >= model.vocab_size:
        raise ValueError(
          f'drafter: {self.name} must draft tokens below the vocabulary size'
          f' {model.vocab_size} of the verifier, got {ids[-1]}; {_ADVICE}.'
        )
      params = model.restrict_vocab(params, ids)
    drafter = RecurrentDrafter(model, beam=self.beam)
    return BoundDrafter(drafter, (self.head, params))


def fingerprint(verifier: checkpoints.Checkpoint) -> str:
  """Returns a hash of a verifier's first embeddings and of its last norm.

  The hash does not depend on the layout of the weights, nor on whether they are
  float32 or the bfloat16 that these round to.
  """
  model, params, _ = verifier
  # Few embeddings, since each curve of a sweep computes a fingerprint.
  tokens = np.arange(min(model.vocab_size, 1024))
  rows = jax.jit(jax.vmap(model.embed, (None, 0)))(params, tokens)
  parts = [
    zlib.crc32(np.asarray(jnp.asarray(x, jnp.bfloat16)).tobytes())
    for x in (rows, params['final_norm']['scale'])
  ]
  size = f'{model.vocab_size}x{rows.shape[1]}'
  return f'{size}-{parts[0]:08x}{parts[1]:08x}'


def save(
  folder: pathlib.Path | str,
  head: Head,
  verifier: checkpoints.Checkpoint,
  draft_vocab_ids: np.ndarray | None = None,
) -> None:
  """Writes a head that was trained for a verifier."""
  tensors = {name: np.asarray(x) for name, x in head.items()}
  if draft_vocab_ids is not None:
    tensors[_VOCAB_IDS] = np.asarray(draft_vocab_ids, np.int32)
  fields = {'kind': 'recurrent', 'verifier': fingerprint(verifier)}
  with files.replace_files(pathlib.Path(folder)) as part:
    tensor_files.save_tensors(part / 'head.safetensors', tensors)
    files.write_text(part / _HEAD_FILE, json.dumps(fields, indent=2) + '\n')


class _Fields(Schema):
  """The fields of a head.json."""

  kind: Literal['recurrent']
  verifier: str


def _read_tensors(
  file: pathlib.Path,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Reads the parameters of a head, and the ids of the tokens it drafts."""
  tensors = tensor_files.open_file(file)
  stored_ids = tensors.pop(_VOCAB_IDS, None)
  shapes = {name: x.shape for name, x in tensors.items()}
  (size, *_), (layers, *_) = (
    (*shapes.get(name, ()), 0) for name in ('state', 'mix')
  )
  expected = {
    'state': (size, size),
    'input': (size, size),
    'bias': (size,),
    'join': (2 * size, size),
    'mix': (layers, size, size),
  }
  # Checked before anything is read, as NumPy lacks some types.
  is_float = all(x.is_weights for x in tensors.values())
  if not size or shapes != expected or not is_float:
    raise ValueError('its tensors have other names or shapes, or no floats')
  ids = None
  if stored_ids is not None:
    fits = stored_ids.is_ids and len(stored_ids.shape) == 1
    ids = np.asarray(stored_ids if fits else [])
    if not len(ids) or ids[0] < 0 or (ids[1:] <= ids[:-1]).any():
      raise ValueError(f'{_VOCAB_IDS} must be a list of increasing ids')
  return {name: np.asarray(x) for name, x in tensors.items()}, ids
