"""The cascade of tokens that speculative ones are compared with.

The drafter writes until its rule defers; there the verifier writes one token.
There are no blocks, no bonus and no gamma. A step is one token, and both
models read in each, for rows of a batch go on side by side; what the cascade
would cost that asks its verifier only where it has to is counted apart.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cascades.decoding import faults
from cascades.decoding.drafter import Draft
from cascades.decoding.journal import Info, Row
from cascades.decoding.reading import read_hidden
from cascades.decoding.state import Params, SamplingState
from cascades.decoding.step import (
  Decoder,
  commit,
  distributions,
  emitted_of,
  keys_of,
  propose,
  remembered,
)
from cascades.methods import Distributions, processing
from cascades.scheme import BONUS, DRAFT, RESIDUAL


def _drafted(
  draft: Draft, d: Distributions, uniforms: Float[Array, 'U']
) -> tuple[Int[Array, ''], Bool[Array, '']]:
  """The drafter's next token, and whether there is one.

  Where it stopped before it proposed any, though it knows what it would say,
  its token is drawn here.

  Args:
    draft: What it proposed: one token, or none.
    d: What both models say of that place.
    uniforms: Random numbers to draw by.
  """
  proposed = draft.count[0] > 0
  drawn = processing.draw(uniforms, d.q)
  x = jnp.where(proposed, draft.tokens[0, 0], drawn)
  return x, proposed | draft.known[0]


def step(
  state: SamplingState,
  params: Params,
  how: processing.Processing,
  stop_tokens: Int[Array, 'K'],
  *,
  decoder: Decoder,
  with_logits: bool = False,
  with_law: bool = False,
) -> tuple[SamplingState, Info]:
  """One token of one sequence.

    x ~ q;  emit x where r(x) = 0, and otherwise a token drawn from p

  Where the drafter has nothing to say, the verifier writes.

  Args:
    state: Of the sequence.
    params: Of both models.
    how: From logits to probabilities, for both models.
    stop_tokens: Ids that end the sequence; they are emitted.
    decoder: What is compiled.
    with_logits: Whether to give what the verifier says.
    with_law: Whether to say what the token follows.

  Returns:
    The state after the token, and what became of it.
  """
  (verifier, drafter), method = decoder.models, decoder.method
  draft_key, verify_key = keys_of(state)

  # 1. Draft one token; and what both models say of it.
  draft, drafter_state, cache, drafter_bad = propose(
    state, params, how, draft_key, decoder
  )
  at = state.length - 1
  logits, hidden, cache = read_hidden(
    *(verifier, params.verifier, cache, state.tokens[at][None], at),
    taps=drafter.taps,
  )
  d = distributions(
    draft.row(0, 0, verifier.vocab_size),
    logits[0],
    how,
    drafter.probabilities,
    decoder.scheme.gate,
  )

  schedule, lenience = state.schedule, state.lenience
  if schedule is not None:
    lenience = schedule.lenience(state.memory, lenience, method.strict)

  # 2. The drafter's token, or the verifier's where the rule defers.
  size = processing.draw_size(verifier.vocab_size)
  more, last = jnp.split(processing.uniform(verify_key, 2 * size), 2)
  x, there = _drafted(draft, d, more)
  rule = jnp.broadcast_to(method.rule(d, lenience), d.q.shape)
  deferred = rule[x] > 0
  stays = there & ~deferred
  tokens = jnp.where(stays, x, processing.draw(last, d.p))[None]
  is_judged = jnp.isfinite(rule[x].astype(jnp.float32))
  is_judged &= processing.has_mass(d.q)
  is_valid = (is_judged | ~there) & (stays | processing.has_mass(d.p))

  # 3. Commit it, as a block of which no draft stays.
  zero = jnp.zeros((), jnp.int32)
  emitted, ended = emitted_of(state, tokens, zero, stop_tokens)
  fault = faults.locate(
    state,
    ~processing.is_sound(logits, hidden),
    drafter_bad[:1],
    ~is_valid[None],
    emitted,
  )
  ended |= fault.is_fault
  memory = remembered(
    *(schedule, state.memory, method, d, lenience, tokens[0], ~there)
  )
  committed = commit(
    *(state, params, drafter_state, cache),
    *(zero, tokens, hidden, memory, emitted, ended, decoder),
  )
  law = jnp.where(there, method.law(d, lenience), d.p)[None]
  return committed, Info(
    sources=jnp.where(stays, DRAFT, jnp.where(there, RESIDUAL, BONUS))[None],
    deferred=(there & deferred)[None],
    logprobs=jax.vmap(processing.log_probability)(logits, tokens),
    logits=logits if with_logits else None,
    drafted=there.astype(jnp.int32),
    drafter_calls=draft.calls,
    read=jnp.ones((), jnp.int32),
    law=law if with_law else None,
    fault=fault,
  )


def tally(row: Row) -> dict[str, int]:
  """Counts the verifier's calls and tokens of one fetched row.

  The verifier is called where it writes: where the rule defers, and where the
  drafter has nothing to say. It reads there what was written up to then.
  """
  new = slice(int(row.prompt_length), int(row.length))
  (written,) = np.nonzero(np.asarray(row.source[new]) != DRAFT)
  return dict(
    verifier_calls=len(written),
    verifier_tokens=int(written[-1]) + 1 if len(written) else 0,
  )
