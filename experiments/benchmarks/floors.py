"""Bare forward passes of the shapes that a loop makes, without any rule.

What a loop takes beyond them is the loop's own: drawing, verifying, counting.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from cascades import decoding
from cascades.decoding import reading
from cascades.methods import processing
from cascades.models import language
from experiments.benchmarks import arms, pairs

# The last token of a row, an int32 array of no dimensions, after its caches.
_State = tuple[tuple[Any, Any], jax.Array]


@dataclasses.dataclass
class _Block:
  """The passes of one block of one row.

  Attributes:
    models: The verifier and the drafter.
    gamma: How many tokens the verifier reads beside the last one, on each path.
    paths: How many drafts lie side by side.
    drafts: How many passes the drafter makes.
    behind: Whether the first of them reads two tokens.
    reads: Whether the verifier makes one.
    room: Slots of both caches.
    branches: How the tokens of several drafts stand; None for one draft.
  """

  models: tuple[language.LanguageModel, language.LanguageModel]
  gamma: int
  paths: int
  drafts: int
  behind: bool
  reads: bool
  room: int
  branches: reading.Branches | None

  def run(self, i: jax.Array, state: _State, params: tuple[Any, Any]) -> _State:
    """Moves a row on by a block.

    Args:
      i: Which block it is; caches that are full are written from the front.
      state: What the row holds.
      params: The weights of both models.
    """
    caches, token = state
    size = (self.gamma + 1) * self.paths
    at = i % (self.room // size) * size
    verifier_cache, drafter_cache = (
      model.rewind(cache, at)
      for model, cache in zip(self.models, caches, strict=True)
    )
    drafted = token + jnp.arange(self.gamma + 1)
    if self.drafts:
      drafter_cache, token, drafted = self._drafted(
        drafter_cache, token, at, params[1]
      )
    if self.reads:
      tree = jnp.append(drafted[0], jnp.repeat(drafted[1:], self.paths))
      logits, verifier_cache = decoding.read(
        self.models[0], params[0], verifier_cache, tree, at, self.branches
      )
      token = processing.likeliest(logits.sum(0))
    return (verifier_cache, drafter_cache), token

  def _drafted(
    self, cache: Any, token: jax.Array, at: jax.Array, params: Any
  ) -> tuple[Any, jax.Array, jax.Array]:
    """The drafter's passes: its cache, its last token, and all of them."""
    start, drafted = token, []
    if self.behind:
      first = jnp.maximum(at - 1, 0)
      cache = self.models[1].rewind(cache, first)
      logits, cache = decoding.read(
        self.models[1], params, cache, jnp.stack([token, token]), first
      )
      cache = self.models[1].rewind(cache, at + 1)
      token = processing.likeliest(logits.sum(0))
      drafted = [token]

    def draft(carry, j):
      cache, token = carry
      beside = decoding.side_by_side(j, self.paths, self.gamma)
      logits, cache = decoding.read(
        self.models[1],
        params,
        cache,
        jnp.broadcast_to(token, (self.paths,)),
        *((at + j,) if self.paths == 1 else (at, beside)),
      )
      # What is read next hangs on what was said, so that no pass is left out.
      token = processing.likeliest(logits.sum(0))
      return (cache, token), token

    levels = jnp.arange(len(drafted), self.drafts)
    (cache, token), rest = jax.lax.scan(draft, (cache, token), levels)
    # As many as the verifier reads, the last token of the row in front.
    drafted = jnp.concatenate([jnp.stack([start, *drafted]), rest])
    return cache, token, drafted[: self.gamma + 1]


def _block(pair: pairs.Pair, arm: str, gamma: int, paths: int) -> _Block:
  """The passes of an arm's block."""
  # Drafts that have nothing in common.
  other = jnp.arange(gamma * paths).reshape(paths, gamma)
  logits = jnp.zeros((gamma + 1, paths, 1))
  tree = decoding.tree(
    jnp.int32(0), decoding.whole(other, logits, 0), gamma * paths
  )
  # What strict decoding takes: the last token of one draft is read in the next
  # block, and those of several are at once.
  of_floor = gamma + (paths > 1) if gamma else 0
  return _Block(
    (pair.verifier.model, pair.drafter.model),
    gamma=gamma,
    paths=paths,
    drafts={'floor': of_floor, 'reading': 0, 'drafting': 1}[arm],
    behind=arm == 'floor' and gamma > 0 and paths == 1,
    reads=arm != 'drafting',
    room=pair.room(paths),
    branches=tree.branches,
  )


def passes(
  pair: pairs.Pair,
  batch: int,
  arm: str,
  gamma: int,
  blocks: int,
  paths: int = 1,
) -> arms.Arm:
  """Bare forward passes, block after block.

  Args:
    pair: Its models are called.
    batch: How many rows there are.
    arm: What a block is: 'floor' for gamma passes of the drafter, or one more
      of several paths (none at gamma 0), and one of the verifier, 'reading' for
      that one alone, and 'drafting' for one pass of the drafter.
    gamma: How many tokens the verifier reads beside the last one, on each path.
    blocks: How many blocks there are.
    paths: How many drafts lie side by side.
  """
  block = _block(pair, arm, gamma, paths)

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(state, *params):
    rows = jax.vmap(block.run, (None, 0, None))
    return jax.lax.fori_loop(0, blocks, lambda i, s: rows(i, s, params), state)

  def prefill():
    caches = [
      one.model.init_cache(one.params, block.room)
      for one in (pair.verifier, pair.drafter)
    ]
    repeated = jax.tree.map(lambda x: jnp.stack([x] * batch), caches)
    return tuple(repeated), jnp.full((batch,), 5, jnp.int32)

  seconds, loop = pair.compile(
    (arm, batch, gamma, blocks, paths), decode, prefill(), *pair.params
  )
  return arms.Arm(
    {'arm': arm, 'gamma': gamma, 'blocks': blocks},
    prefill,
    lambda state: loop(state, *pair.params),
    lambda state: {},
    {'decode': seconds},
    loop.memory_analysis().temp_size_in_bytes,
  )
