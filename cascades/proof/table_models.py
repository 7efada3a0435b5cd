"""Small language models whose laws are known exactly, for tests and audits.

`TableModel` looks up its logits by a hash of every token it can see in its
cache. A cache that is one token behind, a slot that was not rolled back or a
position that is off by one changes the hash, so it changes the law.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Parameters: logits for each hash value.
Logits = Float[Array, 'contexts V']
# `tokens` and `positions`, [S] each, and `end_index`, the slots in use.
Cache = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A language model that is a table; same interface as `LanguageModel`.

  Its parameters are the table, [contexts, V]: logits for each hash value. Its
  hidden states are its logits; after k layers, those k places on.

  Attributes:
    vocab_size: V.
    contexts: Number of hash values; 1 makes a context-free model.
  """

  vocab_size: int
  contexts: int = 7

  def init_params(self, key: jax.Array, scale: float = 2.0) -> Logits:
    """A random table.

    Args:
      key: Random key that it is drawn with.
      scale: Standard deviation of the logits.
    """
    shape = (self.contexts, self.vocab_size)
    return scale * jax.random.normal(key, shape)

  def init_cache(self, params: Logits, cache_length: int) -> Cache:
    """An empty cache of `cache_length` slots, for one sequence."""
    del params
    slots = jnp.zeros((cache_length,), jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    return {'tokens': slots, 'positions': slots, 'end_index': zero}

  def cache_length(self, cache: Cache) -> int:
    """Slots of a cache."""
    return cache['tokens'].shape[-1]

  def context(self, tokens, positions):
    """The hash of the visible tokens of a sequence.

      context = sum_i (tokens_i + 1) (1 + 3 positions_i)  mod  contexts

    Args:
      tokens: Token ids, [..., n], numpy's or JAX's.
      positions: Their positions, counted from 0, [..., n] or [n].

    Returns:
      Rows of the table, [...].
    """
    return ((tokens + 1) * (1 + 3 * positions)).sum(-1) % self.contexts

  def __call__(
    self,
    params: Logits,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
  ) -> tuple[Float[Array, 'L V'], Cache]:
    """Logits after each token; the cache with these tokens appended.

    Args:
      params: The table.
      tokens: Token ids.
      positions: Absolute position of each token, from 0.
      mask: Which of the S cache slots (or of the L tokens, without a cache)
        each token sees.
      cache: From `init_cache` or a previous call; None to do without.

    Returns:
      Logits, and the new cache.
    """
    if cache is None:
      cache = self.init_cache(params, tokens.shape[0])

    def write(old, new):
      return jax.lax.dynamic_update_slice(old, new, (cache['end_index'],))

    held = write(cache['tokens'], tokens)
    at = write(cache['positions'], positions.astype(jnp.int32))
    seen = (held + 1) * (1 + 3 * at)
    context = jnp.where(mask, seen[None], 0).sum(-1) % self.contexts
    end_index = cache['end_index'] + tokens.shape[0]
    return params[context], {
      'tokens': held,
      'positions': at,
      'end_index': end_index,
    }

  def with_hidden(
    self,
    params: Logits,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache]:
    """Logits, hidden states and cache of a call, which takes the same.

    Args:
      params: The table.
      tokens: Token ids.
      positions: Of each token.
      mask: What each token sees.
      cache: What was read before.
      taps: After how many layers states are wanted; without any, the last.
    """
    logits, cache = self(params, tokens, positions, mask, cache)
    states = [jnp.roll(logits, k, -1) for k in taps or (0,)]
    return logits, jnp.concatenate(states, -1), cache

  def hidden_size(self, params: Logits, taps: tuple[int, ...] = ()) -> int:
    """Numbers of a hidden state: V for each tap."""
    del params
    return self.vocab_size * max(1, len(taps))

  def dtype(self, params: Logits) -> Any:
    """Of logits and hidden states."""
    return params.dtype

  def embed(self, params: Logits, token: Int[Array, '']) -> Float[Array, 'V']:
    """A token as a vector: one-hot."""
    del params
    return jax.nn.one_hot(token, self.vocab_size)

  def unembed(
    self, params: Logits, hidden: Float[Array, 'V']
  ) -> Float[Array, 'V']:
    """Logits of a hidden state: itself."""
    del params
    return hidden

  def tersely(self, params: Logits) -> tuple[Logits, None]:
    """As of a `LanguageModel` that says all tokens."""
    return params, None

  def move(
    self, cache: Cache, at: Int[Array, ''], slots: Int[Array, 'n']
  ) -> Cache:
    """The cache with what some slots hold written to `at` and after it."""
    return cache | {
      name: jax.lax.dynamic_update_slice(x, x[slots], (at,))
      for name, x in cache.items()
      if x.ndim
    }

  def rewind(self, cache: Cache, length: Int[Array, ''] | int) -> Cache:
    """The cache as it was when it held `length` tokens."""
    length = jnp.asarray(length, jnp.int32)
    return cache | {'end_index': jnp.broadcast_to(length, ())}

  def resize(self, params: Logits, cache: Cache, cache_length: int) -> Cache:
    """The same cache with more slots, `cache_length` in all."""
    del params
    more = cache_length - self.cache_length(cache)
    return cache | {
      name: jnp.pad(cache[name], (0, more)) for name in ('tokens', 'positions')
    }

  def logits(
    self, params: Logits, tokens: Sequence[int] | Int[Array, 'n']
  ) -> Float[Array, 'V']:
    """The logits after a whole sequence, without a cache."""
    tokens = jnp.asarray(tokens)
    return params[self.context(tokens, jnp.arange(len(tokens)))]
