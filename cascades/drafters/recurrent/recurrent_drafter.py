"""The recurrent drafter: a small head on the verifier's last hidden state.

Cheng, Zhang et al. 2024, arXiv 2403.09919. With h the verifier's hidden state
where it said the last token, e_t the embedding of a token and s_0 = h,

  s_t = silu(U s_{t-1} + W e_t + b)
  f_t = P [h; s_t],   f_t <- f_t + silu(M f_t)  for each layer
  logits_t = (the verifier's embedding table) f_t.

`step` is written for one sequence and one draft. Several drafts of a sequence
are `vmap` of it over random numbers, the hidden state shared; a batch is `vmap`
of that over sequences. A beam search scores what `vmap` over its beams gives.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding.drafter import (
  ROWS,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.methods import processing

Head = dict[str, Array]


def init_head(key: jax.Array, size: int, layers: int = 2) -> Head:
  """A random head for hidden states of `size` numbers."""
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
  """One token read: the next state, and what logits are made of.

  Both are kept in what the verifier's states are, whatever the head is in.
  """
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
  """One token read: the next state, and the logits of the token after it."""
  state, features = read(model, params, head, hidden, state, token)
  return state, model.unembed(params, features)


class Unrolled(Drafter):
  """Drafts by reading a token and saying what may follow it, again and again.

  Drafts know nothing of each other, and each token is drawn.

  Attributes:
    model: The verifier.
  """

  model: Any
  needs_hidden = True

  def start(
    self, params: PyTree, state: PyTree, context: DraftContext, gamma: int
  ) -> tuple[Callable[..., tuple[Any, Array]], PyTree, Int[Array, 'N'] | None]:
    """What reads a token, and its state before it has read the last one.

    Args:
      params: As for `propose`.
      state: Likewise.
      context: Likewise.
      gamma: Tokens of a draft.

    Returns:
      A function that takes a state and a token and gives the next state and
      logits; the first state; and the ids that the logits are of, None for all.
    """
    raise NotImplementedError

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts that all begin with the verifier's last token."""
    step, state_before, said = self.start(params, state, context, gamma)
    sampling = context.sampling.restrict_vocab(said)
    beyond = context.needs_bonus_probs
    count = self.model.vocab_size if said is None else len(said)
    size = processing.uniforms_per_token(count)
    randoms = processing.draw_uniforms(context.key, drafts, gamma + 1, size)
    # One loop for the batch. Rows of logits that are not made are zeros.
    steps = gamma + jax.lax.pmax(beyond.astype(jnp.int32), ROWS)
    token = context.tokens[context.length - 1]
    row = jax.eval_shape(step, state_before, token)[1]
    start = (
      state_before,
      jnp.zeros(gamma + 1, jnp.int32).at[0].set(token),
      jnp.zeros((gamma + 1, *row.shape), row.dtype),
    )

    def one(numbers):
      def read(i, carry):
        state, tokens, logits = carry
        state, row = step(state, tokens[i])
        probs = processing.processed_probs(row, sampling)
        drawn = processing.sample_from_uniforms(numbers[i], probs)
        drawn = drawn if said is None else said[drawn]
        # The token after a whole draft is no part of it.
        tokens = tokens.at[i + 1].set(drawn, mode='drop')
        return state, tokens, logits.at[i].set(row)

      return jax.lax.fori_loop(0, steps, read, start)[1:]

    tokens, logits = jax.vmap(one, out_axes=(0, 1))(randoms)
    draft = full_length_draft(tokens[:, 1:], logits, gamma + beyond, said)
    return draft, state, context.verifier_cache


def draft_beams(
  model: Any,
  params: PyTree,
  head: Head,
  hidden: Float[Array, 'D'],
  token: Int[Array, ''],
  length: int,
  beams: int,
  said: Int[Array, 'N'] | None = None,
) -> tuple[Int[Array, 'K length_1'], Float[Array, 'length_1 K V']]:
  """The drafts of the highest scores, for one sequence; the best first.

  A score is a sum of log-probabilities at temperature 1. `said` are the ids
  that the model's logits are of, None for all.

  Returns:
    Tokens [beams, length + 1]; logits [length + 1, beams, V].
  """
  steps = jax.vmap(step, (None, None, None, None, 0, 0))

  def one(carry, _):
    states, tokens, scores = carry
    states, logits = steps(model, params, head, hidden, states, tokens)
    total = scores[:, None] + jax.nn.log_softmax(logits.astype(jnp.float32))
    scores, best = jax.lax.top_k(total.reshape(-1), beams)
    parents, chosen = jnp.divmod(best, logits.shape[-1])
    chosen = chosen if said is None else said[chosen]
    return (states[parents], chosen, scores), (tokens, logits, parents)

  def back(beam, inputs):
    tokens, logits, parents = inputs
    # `beam` stands after this step; its parent wrote what this step read.
    beam = parents[beam]
    return beam, (tokens[beam], logits[beam])

  start = (
    jnp.broadcast_to(hidden, (beams, *hidden.shape)),
    jnp.broadcast_to(token, (beams,)),
    # One beam at first, not as many that are the same.
    jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf),
  )
  _, (tokens, logits, parents) = jax.lax.scan(one, start, None, length + 1)
  # The last step is for its logits: its beams are the ones that it read.
  parents = parents.at[-1].set(jnp.arange(beams))
  _, (tokens, logits) = jax.lax.scan(
    back, jnp.arange(beams), (tokens, logits, parents), reverse=True
  )
  return tokens.T, logits


@dataclasses.dataclass(frozen=True)
class RecurrentDrafter(Unrolled):
  """Drafts with a head of the verifier's; parameters are (head, verifier's).

  Its drafts do not read what was written before the last token.

  Attributes:
    model: The verifier.
    beam: Whether several drafts are those of the highest scores, instead of
      independent draws.
  """

  model: Any
  beam: bool = False

  @property
  def independent(self) -> bool:
    """Beams know of each other."""
    return not self.beam

  def start(self, params, state, context, gamma):
    """Reads with the verifier's hidden state as its own."""
    head, params = params
    params, said = self.model.split_vocab_ids(params)
    read_token = functools.partial(
      step, self.model, params, head, context.hidden
    )
    return read_token, context.hidden, said

  def propose(self, params, state, context, *, gamma, drafts):
    """Independent draws, or beams."""
    if not self.beam:
      return super().propose(params, state, context, gamma=gamma, drafts=drafts)
    head, params = params
    params, said = self.model.split_vocab_ids(params)
    token = context.tokens[context.length - 1]
    tokens, logits = draft_beams(
      *(self.model, params, head, context.hidden, token, gamma, drafts, said)
    )
    draft = full_length_draft(tokens[:, 1:], logits, gamma + 1, said)
    return draft, state, context.verifier_cache
