"""Small language models whose laws are known exactly, for tests and audits.

`TableModel` looks up its logits by a hash of every token it can see in its
cache. A cache that is one token behind, a slot that was not rolled back or a
position that is off by one changes the hash, so it changes the law.

The hash is a number in base b with a digit for each token, modulo the number of
contexts. `TableModel.injective` takes enough contexts that two continuations of
one text, each of at most `depth` tokens, never share a context. So no two
positions of a block share a context, wherever the block begins.

A verification that reads the wrong distribution of a block emits the right law
wherever that distribution equals the right one. So a proof needs models whose
distributions differ: those of any two contexts of a block, for the drafter (q)
and for the verifier (p), and q and p of one context. Any two differ by at least
`LEAST_DISTANCE` in total variation. The error of the law from a wrong
distribution is a fraction of that distance, far above rounding.

`Table` holds methods evaluated in every context.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cascades import decoding, methods
from cascades.methods import processing

# Parameters: logits for each hash value.
Logits = Float[Array, 'contexts V']
# `tokens` and `positions`, [S] each, and `end_index`, the slots in use.
Cache = dict[str, Array]
# Least total variation between two distributions of a proof.
LEAST_DISTANCE = 0.01
# Draws of each distribution before a proof gives up.
_MOST_DRAWS = 500


def _base(vocab_size: int, contexts: int) -> int:
  """Finds the least base that distinguishes all tokens, and positions."""
  base = max(2, vocab_size)
  while math.gcd(base, contexts) > 1 or (contexts > 2 and base % contexts == 1):
    base += 1
  return base


@functools.cache
def _powers(base: int, contexts: int) -> np.ndarray:
  """Lists one period of the powers of a base modulo a coprime number."""
  powers = [1 % contexts]
  while (power := powers[-1] * base % contexts) != powers[0]:
    powers.append(power)
  return np.array(powers, np.int32)


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A table of logits by context, with the interface of `LanguageModel`.

  Its parameters are the table, [contexts, V]: logits for each hash value. Its
  hidden states are its logits; after k layers, its logits rolled by -k.
  """

  vocab_size: int
  contexts: int = 7
  base: int | None = None

  @classmethod
  def injective(
    cls, vocab_size: int, depth: int, max_contexts: int = 2**14
  ) -> Self:
    """Makes a model in which all texts of a block have different contexts.

    Continuations of one text by at most `depth` tokens are as many as there are
    contexts, 1 + b + .. + b^depth with b = vocab_size, and the hash of a
    continuation is its number in the bijective numeration of base b. So no two
    of them have the same context.
    """

    def contexts(base):
      return sum(base**i for i in range(depth + 1))

    base = max(1, vocab_size)
    while base > 1 and contexts(base) > max_contexts:
      base -= 1
    return cls(vocab_size, contexts(base), base)

  def init_params(self, key: jax.Array, scale: float = 2.0) -> Logits:
    """Draws a random table."""
    shape = (self.contexts, self.vocab_size)
    return scale * jax.random.normal(key, shape)

  def init_cache(self, params: Any, cache_length: int) -> Cache:
    """Makes an empty cache of one sequence."""
    slots = jnp.zeros((cache_length,), jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    return {'tokens': slots, 'positions': slots, 'end_index': zero}

  def cache_length(self, cache: Cache) -> int:
    """Returns the number of slots of a cache."""
    return cache['tokens'].shape[-1]

  def context(self, tokens, positions):
    """Computes the hash of the visible tokens of a sequence.

    context = sum_i (1 + tokens_i mod b) b^positions_i  mod  contexts
    """
    return self._terms(tokens, positions).sum(-1) % self.contexts

  def _terms(self, tokens, positions):
    """Computes each token's term of the hash, from 0 to contexts - 1."""
    base = self.base or _base(self.vocab_size, self.contexts)
    powers = _powers(base, self.contexts)
    if isinstance(positions, jax.Array):
      powers = jnp.asarray(powers)
    residues = (1 + tokens % base) % self.contexts
    return residues * powers[positions % len(powers)] % self.contexts

  def with_hidden(
    self,
    params: Logits,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache]:
    """Computes logits and hidden states, and appends to the cache."""
    if cache is None:
      cache = self.init_cache(params, tokens.shape[0])
    end_index = cache['end_index']

    def write(old, new):
      return jax.lax.dynamic_update_slice(old, new, (end_index,))

    slot_tokens = write(cache['tokens'], tokens)
    slot_positions = write(cache['positions'], positions.astype(jnp.int32))
    terms = jnp.where(mask, self._terms(slot_tokens, slot_positions)[None], 0)
    logits = params[terms.sum(-1) % self.contexts]
    states = [jnp.roll(logits, k, -1) for k in hidden_layers or (0,)]
    cache = {
      'tokens': slot_tokens,
      'positions': slot_positions,
      'end_index': end_index + tokens.shape[0],
    }
    return logits, jnp.concatenate(states, -1), cache

  def hidden_size(
    self, params: Logits, hidden_layers: tuple[int, ...] = ()
  ) -> int:
    """Returns the width of the hidden states: V for each layer."""
    return self.vocab_size * max(1, len(hidden_layers))

  def dtype(self, params: Logits) -> Any:
    """Returns the dtype of logits and hidden states."""
    return params.dtype

  def embed(self, params: Logits, token: Int[Array, '']) -> Float[Array, 'V']:
    """Embeds a token as a one-hot vector."""
    return jax.nn.one_hot(token, self.vocab_size)

  def unembed(
    self, params: Logits, hidden: Float[Array, 'V']
  ) -> Float[Array, 'V']:
    """Returns the logits of a hidden state, the state itself."""
    return hidden

  def split_vocab_ids(self, params: Logits) -> tuple[Logits, None]:
    """Returns the parameters, and None: the vocabulary is not restricted."""
    return params, None

  def move(
    self, cache: Cache, start: Int[Array, ''], slots: Int[Array, 'n']
  ) -> Cache:
    """Copies the n slots of a cache to n slots from `start` on."""
    return cache | {
      name: jax.lax.dynamic_update_slice(x, x[slots], (start,))
      for name, x in cache.items()
      if x.ndim
    }

  def rewind(self, cache: Cache, length: Int[Array, ''] | int) -> Cache:
    """Rolls a cache back to its first `length` tokens."""
    length = jnp.asarray(length, jnp.int32)
    return cache | {'end_index': jnp.broadcast_to(length, ())}

  def resize(self, params: Logits, cache: Cache, cache_length: int) -> Cache:
    """Extends a cache to `cache_length` slots."""
    extra = cache_length - self.cache_length(cache)
    return cache | {
      name: jnp.pad(cache[name], (0, extra)) for name in ('tokens', 'positions')
    }

  def context_after(self, text: Sequence[int] | np.ndarray) -> int:
    """Returns the context after a whole text."""
    return int(self.context(np.array(text, int), np.arange(len(text))))


def draft_pairs(
  model: TableModel, prompt: Sequence[int], depth: int
) -> Int[np.ndarray, 'N 2']:
  """Lists pairs of contexts along drafts, whose distributions must differ."""
  pairs = set()
  for length in range(depth + 1):
    for text in itertools.product(range(model.vocab_size), repeat=length):
      ends = range(len(prompt), len(prompt) + length + 1)
      along = [model.context_after([*prompt, *text][:end]) for end in ends]
      pairs |= {(context, along[-1]) for context in along}
  return np.array(sorted(pairs))


def separate(
  q: Float[np.ndarray, 'contexts V'],
  p: Float[np.ndarray, 'contexts V'],
  draw: Callable[[np.random.Generator, int], Float[np.ndarray, 'n V']],
  pairs: Int[np.ndarray, 'N 2'] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws distributions again until no two are too near."""
  probs, count = np.concatenate([q, p]), len(q)
  if pairs is None:
    indices = np.stack(np.triu_indices(2 * count, 1), 1)
  else:
    # Pairs of q, pairs of p, and q beside p.
    distinct, q_to_p = pairs[pairs[:, 0] != pairs[:, 1]], np.array([0, count])
    indices = distinct, distinct + count, pairs + q_to_p
    indices = np.concatenate([*indices, distinct[:, ::-1] + q_to_p])
  rng = np.random.default_rng(0)
  for _ in range(_MOST_DRAWS):
    near = np.abs(probs[indices[:, 0]] - probs[indices[:, 1]]).sum(-1) / 2
    near = near < LEAST_DISTANCE
    if not near.any():
      return probs[:count], probs[count:]
    rejected = np.unique(indices[near].max(1))
    probs[rejected] = draw(rng, len(rejected))
  raise ValueError(
    f'tables: {len(probs)} distributions of {probs.shape[1]} tokens do not all'
    f' differ by {LEAST_DISTANCE}; take fewer contexts or more tokens.'
  )


def random_tables(
  model: TableModel, keys: Sequence[jax.Array] | jax.Array, scale: float = 2.0
) -> list[Logits]:
  """Draws tables of a verifier and a drafter that a proof can distinguish."""

  def log_probs(logits):
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))

  def draw(rng, count):
    shape = count, model.vocab_size
    return np.exp(log_probs(scale * rng.standard_normal(shape)))

  tables = [model.init_params(key, scale) for key in keys]
  verifier_probs, drafter_probs = (np.exp(log_probs(x)) for x in tables)
  separate_probs = separate(verifier_probs, drafter_probs, draw)
  return [
    jnp.where((old == new).all(-1, keepdims=True), table, jnp.log(new))
    for table, old, new in zip(
      tables, (verifier_probs, drafter_probs), separate_probs, strict=True
    )
  ]


@dataclasses.dataclass(frozen=True)
class Table:
  """M methods evaluated in every context, as numpy arrays.

  Attributes:
    q: [contexts, V], the distribution that the drafter samples from.
    p: [contexts, V], the distribution that the verifier samples from.
    acceptance: [M, contexts, V], probability of keeping each drafted token.
    residual: [M, contexts, V], distribution of the token after a rejection.
    law: [M, contexts, V], the declared law.
    deferred: [M, contexts, V], 1 where the rule defers to the verifier, else
      0; 0 everywhere for a method without a rule.
  """

  q: np.ndarray
  p: np.ndarray
  acceptance: np.ndarray
  residual: np.ndarray
  law: np.ndarray
  deferred: np.ndarray

  @classmethod
  def from_methods(
    cls,
    pairs: Sequence[tuple[methods.Method, float]],
    d: methods.Distributions,
  ) -> 'Table':
    """Evaluates methods in every context."""
    d = jax.tree.map(jnp.asarray, d)
    columns = [
      np.asarray(_tabulate(d, jnp.asarray(lenience, d.q.dtype), method=method))
      for method, lenience in pairs
    ]
    columns = np.stack(columns, axis=1).astype(np.float64)
    return cls(np.asarray(d.q), np.asarray(d.p), *columns)


@functools.partial(jax.jit, static_argnames='method')
def _tabulate(
  d: methods.Distributions, lenience: Array, *, method: methods.Method
) -> Float[Array, '4 contexts V']:
  """Computes acceptance, residual, law and deferrals, d [contexts, V]."""
  rule = method.rule or (lambda d, lenience: jnp.zeros(()))

  def evaluate(d):
    columns = (
      method.acceptance(d, lenience),
      method.residual(d, lenience),
      method.law(d, lenience),
      jnp.broadcast_to(rule(d, lenience), d.q.shape),
    )
    return jnp.stack([x.astype(d.q.dtype) for x in columns])

  return jax.vmap(evaluate, out_axes=1)(d)


def table_distributions(
  verifier_table: Float[Array, 'contexts V'],
  drafter_table: Float[Array, 'contexts V'],
  sampling: processing.SamplingParams,
  gate: str = 'raw',
) -> methods.Distributions:
  """Computes the loop's distributions in each context of two models."""
  return jax.vmap(
    lambda q, p: decoding.distributions(q, p, sampling, gate=gate)
  )(drafter_table, verifier_table)
