"""Language models that draft token by token."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cascades.decoding.drafter import (
  ROWS,
  Draft,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.decoding.reading import parallel_drafts_mask, read
from cascades.methods import processing


@dataclasses.dataclass(frozen=True)
class ModelDrafter(Drafter):
  """A language model that drafts token by token.

  Several drafts are drafted side by side, each level of them in one pass.

  The last token of a whole draft is read only where it is asked what comes
  after it. So a block begins with the last two tokens of the sequence, of which
  the first was read before unless a whole draft was kept; several drafts are
  read whole, gamma + 1 times. Either way "all accepted" is no special case.

  Attributes:
    model: Drafts.
    adaptive: Whether it stops where its most probable token, at temperature 1
      and before truncation, is less probable than a threshold (BiLD's
      fallback, Kim et al. 2023, arXiv 2302.07863). Its parameters then are the
      model's and the threshold. Whether to go on is known before a token is
      drawn, so the law is kept.
  """

  model: Any
  adaptive: bool = False

  @property
  def allows_empty_draft(self) -> bool:
    """Its first token may be too improbable already."""
    return self.adaptive

  def _split(self, params):
    return params if self.adaptive else (params, None)

  def init(self, params, cache_length):
    """An empty cache."""
    return self.model.init_cache(self._split(params)[0], cache_length)

  def read(self, params, state, tokens, position):
    """The cache after some tokens."""
    # Nobody looks at the logits, so that none are computed.
    return read(self.model, self._split(params)[0], state, tokens, position)[1]

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts level by level, until all have gamma tokens or none goes on."""
    params, threshold = self._split(params)
    draft, state = _draft(
      self.model,
      params,
      state,
      context,
      sizes=(gamma, drafts),
      reads_last_two=drafts == 1,
      threshold=threshold,
    )
    return draft, state, context.verifier_cache

  def rollback(self, state, position, draft_index, length, *, gamma, drafts):
    """The winner's slots, moved to the front, as far as they are kept."""
    if drafts > 1 and gamma:
      slots = position + jnp.arange(gamma + 1) * drafts + draft_index
      state = self.model.move(state, position, slots)
    return self.model.rewind(state, length)

  def resize(self, params, state, cache_length):
    """The same cache with another room."""
    return self.model.resize(self._split(params)[0], state, cache_length)


@dataclasses.dataclass(frozen=True)
class SelfDrafter(Drafter):
  """The verifier's own first layers, with its parameters and its cache.

  What they write of the drafts is what the verifier itself will write there.

  Attributes:
    model: The first layers: `LanguageModel.first_layers`.
  """

  model: Any

  def propose(self, params, state, context, *, gamma, drafts):
    """As `ModelDrafter`, in the verifier's cache, which misses nothing."""
    cache = self.model.first_layers_cache(context.verifier_cache)
    draft, cache = _draft(
      self.model, params, cache, context, sizes=(gamma, drafts)
    )
    cache = self.model.rewind(cache, context.length - 1)
    return draft, state, context.verifier_cache | cache


def _draft(
  model: Any,
  params: PyTree,
  cache: PyTree,
  context: DraftContext,
  *,
  sizes: tuple[int, int],
  reads_last_two: bool = False,
  threshold: Float[Array, ''] | None = None,
) -> tuple[Draft, PyTree]:
  """Level by level; every draft begins with a copy of the last token.

  Args:
    model: Drafts.
    params: Its parameters.
    cache: Holds all tokens but the last, or but the last two if
      `reads_last_two`.
    context: The sequence and what is requested.
    sizes: Gamma and the number of drafts.
    reads_last_two: True if the last two tokens are read first, in one pass;
      there is one draft then.
    threshold: A probability below which a draft stops; None for none.
  """
  gamma, drafts = sizes
  at = context.length - 1
  beyond = context.needs_bonus_probs
  # One loop for the batch, whose rows may ask for different things.
  levels = gamma + jax.lax.pmax(beyond.astype(jnp.int32), ROWS)
  # Of a small part of the vocabulary, all of this is as small.
  params, said = model.split_vocab_ids(params)
  sampling = context.sampling.restrict_vocab(said)
  count = model.vocab_size if said is None else len(said)
  size = processing.uniforms_per_token(count)
  uniforms = processing.draw_uniforms(context.key, gamma + 1, drafts, size)
  start = dict(
    level=jnp.zeros((), jnp.int32),
    cache=cache,
    last=jnp.broadcast_to(context.tokens[at], (drafts,)),
    tokens=jnp.zeros((gamma + 1, drafts), jnp.int32),
    logits=jnp.zeros(
      (gamma + 1, drafts, count),
      jnp.promote_types(model.dtype(params), jnp.float32),
    ),
    going=jnp.ones((drafts,), bool),
    count=jnp.zeros((drafts,), jnp.int32),
    calls=jnp.zeros((), jnp.int32),
    anyone=jnp.ones((), bool),
  )

  def body(c):
    i = c['level']
    place = (at + i,)
    if drafts > 1:
      place = at, parallel_drafts_mask(i, drafts, gamma)
    return grown(c, *read(model, params, c['cache'], c['last'], *place))

  def grown(c, logits, cache):
    i = c['level']
    last = jax.vmap(
      lambda u, z: processing.sample_from_uniforms(
        u, processing.processed_probs(z, sampling)
      )
    )(uniforms[i], logits)
    last = last if said is None else said[last]
    going, anyone = c['going'], c['anyone']
    calls = c['calls'] + (going.any() & (i < gamma + beyond))
    if threshold is not None:
      most = jax.vmap(processing.gate_probs)(logits).max(-1)
      going = going & (most >= threshold)
      # It ends when the last row does.
      anyone = jax.lax.pmax(going.any(), ROWS)
    return dict(
      level=i + 1,
      cache=cache,
      last=last,
      tokens=c['tokens'].at[i].set(last),
      logits=c['logits'].at[i].set(logits),
      going=going,
      count=c['count'] + (going & (i < gamma)),
      calls=calls,
      anyone=anyone,
    )

  if reads_last_two:
    # Of a sequence of one token, what is read too much is written over.
    first = jnp.maximum(at - 1, 0)
    two = jax.lax.dynamic_slice(context.tokens, (first,), (2,))
    logits, cache = read(model, params, model.rewind(cache, first), two, first)
    cache = model.rewind(cache, at + 1)
    start = grown(start, logits[at - first][None], cache)
  end = jax.lax.while_loop(
    lambda c: (c['level'] < levels) & c['anyone'], body, start
  )
  draft = Draft(
    tokens=end['tokens'][:gamma].T,
    logits=end['logits'],
    lengths=end['count'],
    has_bonus_probs=jnp.ones((drafts,), bool),
    calls=end['calls'],
    draft_vocab_ids=said,
  )
  return draft, end['cache']


@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
  """Drafts nothing: with gamma = 0, plain decoding with the verifier."""

  def propose(self, params, state, context, *, gamma, drafts):
    """No token, and nothing known of the next: the verifier writes it."""
    draft = full_length_draft(jnp.zeros((drafts, 0), jnp.int32), None, 0)
    draft = draft._replace(has_bonus_probs=jnp.zeros(drafts, bool))
    return draft, state, context.verifier_cache
