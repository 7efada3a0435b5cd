"""What can draft: anything with the five methods of `Drafter`.

A drafter is written for one sequence and `vmap`ped over the batch. It proposes
gamma tokens and, with each, the logits of the distribution it was drawn from;
plus those of one more position, since the bonus token's law may look at the
drafter too. Drafting gamma + 1 times also leaves its cache level with the
verifier's, so that "all accepted" is no special case.
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
    logits: [gamma + 1, V]. Each token was drawn from `sampling.probabilities`
      of its row, and the next would be from the last row. One-hot (0 and -inf)
      where a token was not drawn but chosen.
  """

  tokens: Int[Array, 'gamma']
  logits: Float[Array, 'gamma_1 V']


class Drafter(Protocol):
  """Proposes tokens for one sequence. Hashable: it is a static argument."""

  def init(self, params: PyTree, cache_length: int) -> State:
    """The state before anything is read, with room for `cache_length`."""

  def read(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    position: Int[Array, ''],
  ) -> State:
    """The state after `tokens`, the first of which stands at `position`."""

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

  def resize(self, params: PyTree, state: State, cache_length: int) -> State:
    """The same state with another room."""

  def calls(self, gamma: int) -> int:
    """Forward passes that one block costs."""


def visible(positions: Int[Array, 'L'], cache_length: int) -> Array:
  """[L, cache_length]: slots up to each position; slot i holds position i."""
  return jnp.arange(cache_length)[None] <= positions[:, None]


def read(
  model: Any,
  params: PyTree,
  cache: State,
  tokens: Int[Array, 'L'],
  position: Int[Array, ''],
) -> tuple[Float[Array, 'L V'], State]:
  """A model's logits and cache after reading tokens in one pass."""
  positions = position + jnp.arange(tokens.shape[0])
  mask = visible(positions, model.cache_length(cache))
  return model(params, tokens, positions, mask, cache)


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
  """A language model that drafts token by token."""

  model: Any

  def init(self, params, cache_length):
    return self.model.init_cache(params, cache_length)

  def read(self, params, state, tokens, position):
    # Nobody looks at the logits, so that none are computed.
    return read(self.model, params, state, tokens, position)[1]

  def propose(self, params, state, last, position, key, gamma, how):
    def one(carry, inputs):
      cache, token = carry
      i, uniforms = inputs
      logits, cache = read(self.model, params, cache, token[None], position + i)
      token = sampling.draw(uniforms, sampling.probabilities(logits[0], how))
      return (cache, token), (token, logits[0])

    size = sampling.draw_size(self.model.vocab_size)
    steps = jnp.arange(gamma + 1), sampling.uniform(key, gamma + 1, size)
    (state, _), (tokens, logits) = jax.lax.scan(one, (state, last), steps)
    return Draft(tokens[:gamma], logits), state

  def rewind(self, state, length):
    return self.model.rewind(state, length)

  def resize(self, params, state, cache_length):
    return self.model.resize(params, state, cache_length)

  def calls(self, gamma):
    return gamma + 1


@dataclasses.dataclass(frozen=True)
class NoDrafter:
  """Drafts nothing: with gamma = 0, plain decoding with the verifier."""

  vocab_size: int

  def init(self, params, cache_length):
    return ()

  def read(self, params, state, tokens, position):
    return state

  def propose(self, params, state, last, position, key, gamma, how):
    nothing = jnp.zeros((1, self.vocab_size))
    return Draft(jnp.zeros((0,), jnp.int32), nothing), state

  def rewind(self, state, length):
    return state

  def resize(self, params, state, cache_length):
    return state

  def calls(self, gamma):
    return 0
