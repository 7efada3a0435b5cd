"""The lower bound of the loop: its forward passes, without any rule.

The loop of this project also draws, verifies and counts.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cascades import decoding
from cascades.methods import processing
from cascades.models import language
from experiments.benchmarks import entrants, harness

# The caches of verifier and drafter of a row, and its last token, an int32
# scalar.
_State = tuple[tuple[Any, Any], jax.Array]


def lower_bound(
  pair: entrants.Pair, batch: int, gamma: int, blocks: int
) -> harness.Entrant:
  """Makes an entrant of the forward passes of strict decoding."""
  models, length = (pair.verifier.model, pair.drafter.model), pair.cache_length
  row_block = functools.partial(block, models, gamma, length)

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(state, *params):
    rows = jax.vmap(row_block, (None, 0, None))
    return jax.lax.fori_loop(0, blocks, lambda i, s: rows(i, s, params), state)

  def prefill():
    caches = [
      side.model.init_cache(side.params, length)
      for side in (pair.verifier, pair.drafter)
    ]
    repeated = jax.tree.map(lambda x: jnp.stack([x] * batch), caches)
    return tuple(repeated), jnp.full((batch,), 5, jnp.int32)

  return harness.two_part_entrant(
    {'arm': 'floor', 'gamma': gamma, 'blocks': blocks},
    prefill,
    lambda state: decode(state, *pair.params),
    lambda state: {},
  )


def block(
  models: tuple[language.LanguageModel, language.LanguageModel],
  gamma: int,
  cache_length: int,
  index: jax.Array,
  state: _State,
  params: tuple[Any, Any],
) -> _State:
  """Runs the forward passes of one block of one row."""
  (verifier_cache, drafter_cache), token = state
  start = index % (cache_length // (gamma + 1)) * (gamma + 1)
  verifier_cache = models[0].rewind(verifier_cache, start)
  tokens = token[None]
  if gamma:
    drafter_cache, tokens = _draft(
      _Drafter(models[1], params[1], gamma), drafter_cache, token, start
    )
  reader = functools.partial(decoding.read, models[0], params[0])
  logits, verifier_cache = reader(verifier_cache, tokens, start)
  return (verifier_cache, drafter_cache), _next_token(logits)


def _next_token(logits: jax.Array) -> jax.Array:
  """Returns a token that depends on all logits, so that no pass is removed."""
  return processing.argmax_lowest_id(logits.sum(0))


class _Drafter(NamedTuple):
  """A drafter with its parameters, and the tokens that it drafts per block."""

  model: language.LanguageModel
  params: Any
  gamma: int


def _draft(
  drafter: _Drafter, cache: Any, token: jax.Array, start: jax.Array
) -> tuple[Any, jax.Array]:
  """Runs the drafter passes after a token at position `start`."""
  model = drafter.model
  read = functools.partial(decoding.read, model, drafter.params)
  # Strict decoding does not read its last draft, and catches up here.
  first = jnp.maximum(start - 1, 0)
  logits, cache = read(
    model.rewind(cache, first), jnp.stack([token, token]), first
  )
  cache, second = model.rewind(cache, start + 1), _next_token(logits)

  def step(carry, j):
    cache, last = carry
    logits, cache = read(cache, last[None], start + j)
    last = _next_token(logits)
    return (cache, last), last

  (cache, _), rest = jax.lax.scan(
    step, (cache, second), jnp.arange(1, drafter.gamma)
  )
  return cache, jnp.concatenate([jnp.stack([token, second]), rest])
