"""The recurrent drafter: a small head on the verifier's last hidden state.

Cheng, Zhang et al. 2024, arXiv 2403.09919. With h the verifier's hidden state
that predicted the last token, e_t the embedding of a token and s_0 = h,

  s_t = silu(U s_{t-1} + W e_t + b)
  f_t = P [h; s_t],   f_t <- f_t + silu(M f_t)  for each layer
  logits_t = (the verifier's embedding table) f_t.

`step` is written for one sequence and one draft. Several drafts of a sequence
are a `vmap` of `step` over random numbers with one hidden state; a batch is a
`vmap` over sequences, and a beam search a `vmap` over beams.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding.drafter import full_length_draft
from cascades.drafters.stepwise import Recurrence, StepwiseDrafter

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
  model: Any,
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


def step(
  model: Any,
  params: PyTree,
  head: Head,
  hidden: Float[Array, 'D'],
  state: Float[Array, 'D'],
  token: Int[Array, ''],
) -> tuple[Float[Array, 'D'], Float[Array, 'V']]:
  """Reads one token; the arguments are those of `read`."""
  state, features = read(
    model, params, head, hidden=hidden, state=state, token=token
  )
  return state, model.unembed(params, features)


def draft_beams(
  model: Any,
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

  @jax.vmap
  def read_beam(state, token):
    return step(model, params, head, hidden=hidden, state=state, token=token)

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

  model: Any
  beam: bool = False

  @property
  def independent(self) -> bool:
    """True without a beam search, whose drafts depend on each other."""
    return not self.beam

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the head; its state is the hidden state."""
    head, params = params
    params, draft_vocab_ids = self.model.split_vocab_ids(params)
    hidden = context.hidden
    # Given because of `needs_hidden`.
    assert hidden is not None

    def read_token(state, token):
      return step(
        self.model, params, head, hidden=hidden, state=state, token=token
      )

    return Recurrence(read_token, hidden, draft_vocab_ids)

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
