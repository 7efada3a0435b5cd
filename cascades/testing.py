"""Small models whose laws are known exactly, for tests and audits.

`TableModel` looks up its logits by a hash of every token it can see in its
cache. A cache that is one token behind, a slot that was not rolled back or a
position that is off by one changes the hash, so it changes the law.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from cascades import methods, sampling


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A language model that is a table; same interface as `LanguageModel`.

  Its parameters are the table, [contexts, V]: logits per hashed context.

  Attributes:
    vocab_size: V.
    contexts: Number of hash values; 1 makes a context-free model.
  """

  vocab_size: int
  contexts: int = 7

  def init_params(self, key: jax.Array, scale: float = 2.0):
    """A random table."""
    shape = (self.contexts, self.vocab_size)
    return scale * jax.random.normal(key, shape)

  def init_cache(self, params, cache_length: int):
    del params
    slots = jnp.zeros((cache_length,), jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    return {'tokens': slots, 'positions': slots, 'end_index': zero}

  def cache_length(self, cache) -> int:
    return cache['tokens'].shape[-1]

  def context(self, tokens, positions):
    """The hash of a sequence of visible tokens."""
    return ((tokens + 1) * (1 + 3 * positions)).sum(-1) % self.contexts

  def __call__(self, params, tokens, positions, mask, cache):
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

  def rewind(self, cache, length):
    length = jnp.asarray(length, jnp.int32)
    return cache | {'end_index': jnp.broadcast_to(length, ())}

  def logits(self, params, tokens) -> jax.Array:
    """The logits after a whole sequence, without a cache; [V]."""
    tokens = jnp.asarray(tokens)
    return params[self.context(tokens, jnp.arange(len(tokens)))]


def exact_law(
  method: methods.Method,
  lenience: float,
  model: TableModel,
  verifier_table,
  drafter_table,
  prompt: list[int],
  length: int,
  how: sampling.Processing,
) -> np.ndarray:
  """The declared law of the next `length` tokens, by enumeration.

  Args:
    method: Whose `law` is declared.
    lenience: Its lenience.
    model: Of both tables.
    verifier_table: [contexts, V].
    drafter_table: [contexts, V].
    prompt: Token ids.
    length: How many tokens to look ahead.
    how: From logits to probabilities.

  Returns:
    [V] * length, the probability of every continuation.
  """

  @jax.jit
  def laws(contexts):
    def one(c):
      small, large = drafter_table[c], verifier_table[c]
      d = methods.Distributions(
        q=sampling.probabilities(small, how),
        p=sampling.probabilities(large, how),
        q_gate=sampling.gate_probabilities(small),
        p_gate=sampling.gate_probabilities(large),
      )
      return method.law(d, jnp.asarray(lenience))

    return jax.vmap(one)(contexts)

  v = model.vocab_size
  total = np.ones(())
  for i in range(length):
    prefixes = list(itertools.product(range(v), repeat=i))
    tokens = np.array([[*prompt, *prefix] for prefix in prefixes])
    context = model.context(tokens, np.arange(tokens.shape[1]))
    rows = np.asarray(laws(context), np.float64)
    total = total[..., None] * rows.reshape([v] * (i + 1))
  return total
