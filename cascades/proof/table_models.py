"""Small language models whose laws are known exactly, for tests and audits.

`TableModel` looks up its logits by a hash of every token it can see in its
cache. A cache that is one token behind, a slot that was not rolled back or a
position that is off by one changes the hash, so it changes the law.

The hash is a number in base b with a digit for each token, modulo the number of
contexts. `TableModel.injective` takes so many contexts that no two texts share
one which begin alike and then go on for at most so many tokens: no two rows of
a block do, wherever it begins.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Parameters: logits for each hash value.
Logits = Float[Array, 'contexts V']
# `tokens` and `positions`, [S] each, and `end_index`, the slots in use.
Cache = dict[str, Array]


def _base(vocab_size: int, contexts: int) -> int:
  """The least base that tells all tokens, and positions, from each other."""
  base = max(2, vocab_size)
  while math.gcd(base, contexts) > 1 or (contexts > 2 and base % contexts == 1):
    base += 1
  return base


@functools.cache
def _powers(base: int, contexts: int) -> np.ndarray:
  """The powers of a base modulo a number that it is prime to: one period."""
  powers = [1 % contexts]
  while (further := powers[-1] * base % contexts) != powers[0]:
    powers.append(further)
  return np.array(powers, np.int32)


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A language model that is a table; same interface as `LanguageModel`.

  Its parameters are the table, [contexts, V]: logits for each hash value. Its
  hidden states are its logits; after k layers, those k places on.

  Attributes:
    vocab_size: V.
    contexts: Number of hash values; 1 makes a context-free model.
    base: Base of the hash, prime to `contexts`, to which token ids count
      modulo it; None for the least that tells all tokens from each other.
  """

  vocab_size: int
  contexts: int = 7
  base: int | None = None

  @classmethod
  def injective(
    cls, vocab_size: int, depth: int, most_contexts: int = 2**14
  ) -> Self:
    """Makes a model in which the texts of a block have contexts of their own.

    Texts that begin alike and go on for at most `depth` tokens are as many as
    there are contexts, 1 + b + .. + b^depth with b = vocab_size, and the hash
    of what they go on with is their number in the bijective numeration of base
    b. So no two of them have the same context.

    Args:
      vocab_size: V.
      depth: Tokens of a block.
      most_contexts: Where there are more texts, the base is the largest that
        needs no more contexts. Then texts that differ in tokens which are equal
        modulo the base share a context; a text never shares one with a text
        that it begins with.
    """

    def contexts(base):
      return sum(base**i for i in range(depth + 1))

    base = max(1, vocab_size)
    while base > 1 and contexts(base) > most_contexts:
      base -= 1
    return cls(vocab_size, contexts(base), base)

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

      context = sum_i (1 + tokens_i mod b) b^positions_i  mod  contexts

    Args:
      tokens: Token ids, [..., n], numpy's or JAX's.
      positions: Their positions, counted from 0, [..., n] or [n].

    Returns:
      Rows of the table, [...].
    """
    return self._terms(tokens, positions).sum(-1) % self.contexts

  def _terms(self, tokens, positions):
    """What each token adds to the hash, from 0 to contexts - 1."""
    base = self.base or _base(self.vocab_size, self.contexts)
    powers = _powers(base, self.contexts)
    if isinstance(positions, jax.Array):
      powers = jnp.asarray(powers)
    digits = (1 + tokens % base) % self.contexts
    return digits * powers[positions % len(powers)] % self.contexts

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
    seen = jnp.where(mask, self._terms(held, at)[None], 0)
    context = seen.sum(-1) % self.contexts
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
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache]:
    """Logits, hidden states and cache of a call, which takes the same.

    Args:
      params: The table.
      tokens: Token ids.
      positions: Of each token.
      mask: What each token sees.
      cache: What was read before.
      hidden_layers: After how many layers states are wanted; without any, the
        last.
    """
    logits, cache = self(params, tokens, positions, mask, cache)
    states = [jnp.roll(logits, k, -1) for k in hidden_layers or (0,)]
    return logits, jnp.concatenate(states, -1), cache

  def hidden_size(
    self, params: Logits, hidden_layers: tuple[int, ...] = ()
  ) -> int:
    """Numbers of a hidden state: V for each tap."""
    del params
    return self.vocab_size * max(1, len(hidden_layers))

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

  def split_vocab_ids(self, params: Logits) -> tuple[Logits, None]:
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

  def after(self, text: Sequence[int] | np.ndarray) -> int:
    """The row of the table after a whole text."""
    return int(self.context(np.array(text, int), np.arange(len(text))))

  def logits(
    self, params: Logits, tokens: Sequence[int] | Int[Array, 'n']
  ) -> Float[Array, 'V']:
    """The logits after a whole sequence, without a cache."""
    tokens = jnp.asarray(tokens)
    return params[self.context(tokens, jnp.arange(len(tokens)))]
