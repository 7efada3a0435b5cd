"""The lower bound of the loop: its forward passes, without any rule.

What the loop takes beyond them is its own: drawing, verifying, counting.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from cascades import decoding
from cascades.methods import processing
from cascades.models import language
from experiments.benchmarks import entrants, harness

# A row's caches, of the verifier and of the drafter, and its last token, an
# int32 array without dimensions.
_State = tuple[tuple[Any, Any], jax.Array]


def floor(
  pair: entrants.Pair, batch: int, gamma: int, blocks: int
) -> harness.Entrant:
  """Makes the forward passes of strict decoding, block after block.

  Args:
    pair: Its models are called.
    batch: How many rows there are.
    gamma: The drafter's passes of a block; the verifier's pass reads one more.
    blocks: How many blocks there are.
  """
  models, length = (pair.verifier.model, pair.drafter.model), pair.cache_length
  one = functools.partial(block, models, gamma, length)

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(state, *params):
    rows = jax.vmap(one, (None, 0, None))
    return jax.lax.fori_loop(0, blocks, lambda i, s: rows(i, s, params), state)

  def prefill():
    caches = [
      side.model.init_cache(side.params, length)
      for side in (pair.verifier, pair.drafter)
    ]
    repeated = jax.tree.map(lambda x: jnp.stack([x] * batch), caches)
    return tuple(repeated), jnp.full((batch,), 5, jnp.int32)

  return harness.in_two_parts(
    {'arm': 'floor', 'gamma': gamma, 'blocks': blocks},
    prefill,
    lambda state: decode(state, *pair.params),
    lambda state: {},
  )


def block(
  models: tuple[language.LanguageModel, language.LanguageModel],
  gamma: int,
  cache_length: int,
  i: jax.Array,
  state: _State,
  params: tuple[Any, Any],
) -> _State:
  """Makes the passes of one block of one row.

  Args:
    models: The verifier and the drafter.
    gamma: How many tokens are drafted.
    cache_length: Slots of both caches; full ones are written from the front.
    i: Which block it is.
    state: The row.
    params: The weights of both models.
  """
  (verifier_cache, drafter_cache), token = state
  at = i % (cache_length // (gamma + 1)) * (gamma + 1)
  verifier_cache = models[0].rewind(verifier_cache, at)
  tokens = token[None]
  if gamma:
    drafter_cache, tokens = _drafted(
      models[1], params[1], drafter_cache, token, at, gamma
    )
  logits, verifier_cache = decoding.read(
    models[0], params[0], verifier_cache, tokens, at
  )
  return (verifier_cache, drafter_cache), _next(logits)


def _next(logits: jax.Array) -> jax.Array:
  """A token that depends on all logits, so that no pass is left out."""
  return processing.argmax_lowest_id(logits.sum(0))


def _drafted(
  model: language.LanguageModel,
  params: Any,
  cache: Any,
  token: jax.Array,
  at: jax.Array,
  gamma: int,
) -> tuple[Any, jax.Array]:
  """Makes the drafter's passes after `token`, which stands at position `at`.

  Returns:
    Its cache; and `token`, followed by the tokens that were drafted.
  """
  # Strict decoding does not read its last draft, and makes up for it here.
  first = jnp.maximum(at - 1, 0)
  logits, cache = decoding.read(
    model, params, model.rewind(cache, first), jnp.stack([token, token]), first
  )
  cache, second = model.rewind(cache, at + 1), _next(logits)

  def draft(carry, j):
    cache, last = carry
    logits, cache = decoding.read(model, params, cache, last[None], at + j)
    last = _next(logits)
    return (cache, last), last

  (cache, _), rest = jax.lax.scan(draft, (cache, second), jnp.arange(1, gamma))
  return cache, jnp.concatenate([jnp.stack([token, second]), rest])
