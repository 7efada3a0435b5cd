"""Drafting with a language model, one token of each draft at a time.

The loop of `ModelDrafter` and `SelfDrafter`. Several drafts are tokens of one
tree in the cache: level i of the tree holds token i of each draft, and each
level is one forward pass.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import ROWS, Draft, DraftContext
from cascades.decoding.reading import parallel_drafts_mask, read
from cascades.methods import processing


class _Drafting(NamedTuple):
  """The state of the loop over levels."""

  level: Int[Array, '']
  cache: PyTree
  last_tokens: Int[Array, 'K']
  tokens: Int[Array, 'gamma_1 K']
  logits: Float[Array, 'gamma_1 K N']
  is_drafting: Bool[Array, 'K']
  lengths: Int[Array, 'K']
  calls: Int[Array, '']
  any_drafting: Bool[Array, '']


@dataclasses.dataclass(frozen=True)
class _Loop:
  """The values that stay constant while a block is drafted."""

  model: Any
  params: PyTree
  context: DraftContext
  gamma: int
  drafts: int
  threshold: Float[Array, ''] | None
  draft_vocab_ids: Int[Array, 'N'] | None
  sampling: processing.SamplingParams
  uniforms: Array

  @property
  def position(self) -> Int[Array, '']:
    """Index of the last token of the sequence."""
    return self.context.length - 1

  def start(self, cache: PyTree, vocab_size: int) -> _Drafting:
    """Returns the state before the first level; no token is read."""
    gamma, drafts = self.gamma, self.drafts
    return _Drafting(
      level=jnp.zeros((), jnp.int32),
      cache=cache,
      last_tokens=jnp.broadcast_to(
        self.context.tokens[self.position], (drafts,)
      ),
      tokens=jnp.zeros((gamma + 1, drafts), jnp.int32),
      logits=jnp.zeros(
        (gamma + 1, drafts, vocab_size),
        jnp.promote_types(self.model.dtype(self.params), jnp.float32),
      ),
      is_drafting=jnp.ones((drafts,), bool),
      lengths=jnp.zeros((drafts,), jnp.int32),
      calls=jnp.zeros((), jnp.int32),
      any_drafting=jnp.ones((), bool),
    )

  def read_last_two(self, state: _Drafting) -> _Drafting:
    """Drafts the first level after reading the last two tokens in one pass."""
    # In a sequence of one token, the second slot is overwritten later.
    first = jnp.maximum(self.position - 1, 0)
    tokens = jax.lax.dynamic_slice(self.context.tokens, (first,), (2,))
    cache = self.model.rewind(state.cache, first)
    logits, cache = read(self.model, self.params, cache, tokens, position=first)
    cache = self.model.rewind(cache, self.position + 1)
    return self.extend(state, logits[self.position - first][None], cache)

  def read_level(self, state: _Drafting) -> _Drafting:
    """Drafts a level after reading the tokens of the level before."""
    position, tree_mask = self.position + state.level, None
    if self.drafts > 1:
      position = self.position
      tree_mask = parallel_drafts_mask(state.level, self.drafts, self.gamma)
    logits, cache = read(
      self.model,
      self.params,
      state.cache,
      state.last_tokens,
      position=position,
      tree_mask=tree_mask,
    )
    return self.extend(state, logits, cache)

  def extend(
    self, state: _Drafting, logits: Float[Array, 'K N'], cache: PyTree
  ) -> _Drafting:
    """Appends a token to each draft."""
    level = state.level
    last_tokens = jax.vmap(
      lambda u, z: processing.sample_from_uniforms(
        u, processing.processed_probs(z, self.sampling)
      )
    )(self.uniforms[level], logits)
    if self.draft_vocab_ids is not None:
      last_tokens = self.draft_vocab_ids[last_tokens]
    is_drafting, any_drafting = state.is_drafting, state.any_drafting
    levels = self.gamma + self.context.needs_bonus_probs
    calls = state.calls + (is_drafting.any() & (level < levels))
    if self.threshold is not None:
      confidence = jax.vmap(processing.gate_probs)(logits).max(-1)
      is_drafting = is_drafting & (confidence >= self.threshold)
      any_drafting = jax.lax.pmax(is_drafting.any(), ROWS)
    return _Drafting(
      level=level + 1,
      cache=cache,
      last_tokens=last_tokens,
      tokens=state.tokens.at[level].set(last_tokens),
      logits=state.logits.at[level].set(logits),
      is_drafting=is_drafting,
      lengths=state.lengths + (is_drafting & (level < self.gamma)),
      calls=calls,
      any_drafting=any_drafting,
    )


def draft_tokens(
  model: Any,
  params: PyTree,
  cache: PyTree,
  context: DraftContext,
  *,
  gamma: int,
  drafts: int,
  reads_last_two: bool = False,
  threshold: Float[Array, ''] | None = None,
) -> tuple[Draft, PyTree]:
  """Drafts with a language model until all drafts are full or have stopped."""
  # One loop for the batch: it runs as long as any row needs it.
  levels = gamma + jax.lax.pmax(
    context.needs_bonus_probs.astype(jnp.int32), ROWS
  )
  params, draft_vocab_ids = model.split_vocab_ids(params)
  vocab_size = model.vocab_size
  if draft_vocab_ids is not None:
    vocab_size = len(draft_vocab_ids)
  size = processing.uniforms_per_token(vocab_size)
  block = _Loop(
    model=model,
    params=params,
    context=context,
    gamma=gamma,
    drafts=drafts,
    threshold=threshold,
    draft_vocab_ids=draft_vocab_ids,
    sampling=context.sampling.restrict_vocab(draft_vocab_ids),
    uniforms=processing.draw_uniforms(context.key, gamma + 1, drafts, size),
  )
  start = block.start(cache, vocab_size)
  if reads_last_two:
    start = block.read_last_two(start)
  end = jax.lax.while_loop(
    lambda state: (state.level < levels) & state.any_drafting,
    block.read_level,
    start,
  )
  draft = Draft(
    tokens=end.tokens[:gamma].T,
    logits=end.logits,
    lengths=end.lengths,
    has_bonus_probs=jnp.ones((drafts,), bool),
    calls=end.calls,
    draft_vocab_ids=draft_vocab_ids,
  )
  return draft, end.cache
