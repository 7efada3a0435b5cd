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
from cascades.drafters import stepwise
from cascades.drafters.unbound import UnboundDrafter
from cascades.files import Schema
from cascades.models import checkpoints, hub, tensor_files

# A folder with this file holds a recurrent head.
_HEAD_FILE = 'head.json'
_VOCAB_IDS = 'vocabulary'

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
class RecurrentDrafter(stepwise.StepwiseDrafter):
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
    return (
      lambda state, token, _: step(*fixed, state, token),
      context.hidden,
      draft_vocab_ids,
    )

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
  syntax = 'tiny-recurrent, or a folder (a recurrent head for the verifier)'
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
    fields = files.read_fields(folder / _HEAD_FILE, 'drafter')
    fields = _Fields.check(fields, f'drafter: {folder / _HEAD_FILE}')
    file = folder / 'head.safetensors'
    tensors = tensor_files.open_file(file)
    ids = tensors.pop(_VOCAB_IDS, None)
    (size, *_), (layers, *_) = (
      (*(tensors[x].shape if x in tensors else ()), 0) for x in ('state', 'mix')
    )
    size = max(size, 1)
    shapes = {
      'state': (size, size),
      'input': (size, size),
      'bias': (size,),
      'join': (2 * size, size),
      'mix': (layers, size, size),
    }
    head = {
      name: np.asarray(tensor_files.find(file, tensors, name, shape))
      for name, shape in shapes.items()
    }
    if ids is not None:
      ids = np.asarray(ids if ids.is_ids and len(ids.shape) == 1 else [])
      if not len(ids) or ids[0] < 0 or (ids[1:] <= ids[:-1]).any():
        raise ValueError(
          f'drafter: in {file} the tensor {_VOCAB_IDS} must be a list of'
          ' increasing ids; fetch it again.'
        )
    head = tensor_files.device_put_params(head, dtype)
    return cls(head, fields.verifier, folder.name, ids)

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the head to the verifier that it was trained for."""
    model, params, _ = verifier
    # Eight bits keep the norm, whose hash is at the end.
    start = -8 if model.layout == 'int8' else 0
    ids, size = self.draft_vocab_ids, model.vocab_size
    fields = {
      'fingerprint': (self.fingerprint[start:], fingerprint(verifier)[start:]),
      'drafts its tokens': (True, ids is None or ids[-1] < size),
    }
    stepwise.check_verifier(self.name, fields)
    if ids is not None:
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
