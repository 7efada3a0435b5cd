"""What can draft: anything with `init`, `propose` and `rewind`.

A drafter is written for one sequence and `vmap`ped over the batch. It proposes
gamma tokens and, with each, the distribution it was drawn from; plus one more
distribution for the position after them, since the bonus token's law may look
at the drafter too. Drafting gamma + 1 times also leaves its cache level with
the verifier's, so that "all accepted" is no special case.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cascades import sampling

State = PyTree


class Draft(NamedTuple):
  """A block of drafted tokens.

  Attributes:
    tokens: [gamma].
    q: [gamma + 1, V], what each token was drawn from, and the next would be.
    q_gate: [gamma + 1, V], the same before processing, at temperature 1.
  """

  tokens: Int[Array, 'gamma']
  q: Float[Array, 'gamma_1 V']
  q_gate: Float[Array, 'gamma_1 V']


class Drafter(Protocol):
  """Proposes tokens for one sequence. Hashable: it is a static argument."""

  def init(
    self, params: PyTree, prompt: Int[Array, 'P'], cache_length: int
  ) -> State:
    """The state after reading a prompt (padding on the right included)."""

  def propose(
    self,
    params: PyTree,
    state: State,
    last: Int[Array, ''],
    position: Int[Array, ''],
    key: jax.Array,
    gamma: int,
    how: sampling.Processing,
  ) -> tuple[Draft, State]:
    """Drafts gamma tokens after token `last`, which stands at `position`."""

  def rewind(self, state: State, length: Int[Array, '']) -> State:
    """The state as it was when it had read `length` tokens."""

  def calls(self, gamma: int) -> int:
    """Forward passes that one block costs."""


def visible(positions: Int[Array, 'L'], cache_length: int) -> Array:
  """[L, cache_length]: slots up to each position; slot i holds position i."""
  return jnp.arange(cache_length)[None] <= positions[:, None]


def prefill(model: Any, params: PyTree, prompt, cache_length: int) -> State:
  """A model's cache after reading a prompt in one pass.

  Padding on the right is read too: whoever rewinds the cache to the prompt's
  length hides it.
  """
  positions = jnp.arange(prompt.shape[0])
  _, cache = model(
    params,
    prompt,
    positions,
    visible(positions, cache_length),
    model.init_cache(params, cache_length),
  )
  return cache


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
  """A language model that drafts token by token."""

  model: Any

  def init(self, params, prompt, cache_length):
    return prefill(self.model, params, prompt, cache_length)

  def propose(self, params, state, last, position, key, gamma, how):
    cache_length = self.model.cache_length(state)

    def one(carry, inputs):
      cache, token = carry
      i, step_key = inputs
      at = (position + i)[None]
      logits, cache = self.model(
        params, token[None], at, visible(at, cache_length), cache
      )
      q = sampling.probabilities(logits[0], how)
      token = sampling.sample(step_key, q)
      return (cache, token), (token, q, sampling.gate_probabilities(logits[0]))

    steps = jnp.arange(gamma + 1), jax.random.split(key, gamma + 1)
    (state, _), (tokens, q, q_gate) = jax.lax.scan(one, (state, last), steps)
    return Draft(tokens[:gamma], q, q_gate), state

  def rewind(self, state, length):
    return self.model.rewind(state, length)

  def calls(self, gamma):
    return gamma + 1


@dataclasses.dataclass(frozen=True)
class NoDrafter:
  """Drafts nothing: with gamma = 0, plain decoding with the verifier."""

  vocab_size: int

  def init(self, params, prompt, cache_length):
    return ()

  def propose(self, params, state, last, position, key, gamma, how):
    nothing = jnp.zeros((1, self.vocab_size))
    return Draft(jnp.zeros((0,), jnp.int32), nothing, nothing), state

  def rewind(self, state, length):
    return state

  def calls(self, gamma):
    return 0
