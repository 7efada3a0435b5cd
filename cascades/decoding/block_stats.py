"""Statistics of blocks and sequences, kept beside the decoding state.

`step` returns the `BlockStats` of a block; the loop records them in the `Row`,
token by token; `count` sums them outside of compiled code. No step reads them.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cascades.decoding.faults import Fault, first_fault
from cascades.decoding.state import SamplingState, write
from cascades.verification import Verdict
from cascades.verification_config import BONUS, DRAFT, RESIDUAL


class BlockStats(NamedTuple):
  """Statistics of one block."""

  sources: Int[Array, 'gamma_1']
  verdict: Verdict
  logprobs: Float[Array, 'gamma_1']
  logits: Float[Array, 'gamma_1 V'] | None
  drafted: Int[Array, '']
  drafter_calls: Int[Array, '']
  verifier_tokens: Int[Array, '']
  law: Float[Array, 'gamma_1 V'] | None
  fault: Fault


class Row(SamplingState):
  """A sequence of a batch: its state, and statistics of each token.

  Attributes:
    source: Source of each token, an index into `SOURCES`.
    deferral: True where the rule defers the examined draft; at a bonus token,
      where a rule about the whole position defers.
    draft: The examined draft at each token; -1 for none.
    accept_uniform: The number that it was compared with; nan for none.
    cumulative_counts: Blocks, drafted tokens, calls of the drafter, and tokens
      that the verifier read, up to the end of the token's block.
    logprob: The verifier's log-probability of each token at temperature 1.
    logits: The verifier's logits; room for R new tokens. None if not requested.
    fault: The first distribution that was not finite; later tokens are
      meaningless.
  """

  source: Int[Array, 'T']
  deferral: Bool[Array, 'T']
  draft: Int[Array, 'T']
  accept_uniform: Float[Array, 'T']
  cumulative_counts: Int[Array, 'T 4']
  logprob: Float[Array, 'T']
  logits: Float[Array, 'R V'] | None
  fault: Fault


def empty_statistics(length: int) -> dict[str, Array]:
  """Makes the per-token statistics of a row with room for `length` tokens."""
  return dict(
    source=jnp.zeros((length,), jnp.int8),
    deferral=jnp.zeros((length,), bool),
    draft=jnp.zeros((length,), jnp.int32),
    accept_uniform=jnp.zeros((length,), jnp.float32),
    cumulative_counts=jnp.zeros((length, 4), jnp.int32),
    logprob=jnp.zeros((length,), jnp.float32),
  )


def record(before: Row, after: Row, stats: BlockStats) -> Row:
  """Records the statistics of a block in a row."""
  at = before.length
  counts = jnp.stack(
    [1, stats.drafted, stats.drafter_calls, stats.verifier_tokens]
  )
  # A finished row is written to past its end, where nothing is read.
  counts = jnp.broadcast_to(
    before.cumulative_counts[at - 1] + counts,
    (len(stats.sources), len(counts)),
  )
  logits = before.logits
  if logits is not None and stats.logits is not None:
    logits = write(logits, at - before.prompt_length, stats.logits)
  # At the bonus token no draft was examined.
  is_examined = stats.sources != BONUS
  # `verify` fills in the fields that may be None.
  verdict: Any = stats.verdict
  drafts = jnp.where(is_examined, verdict.drafts, -1)
  accept_uniforms = jnp.where(is_examined, verdict.accept_uniforms, jnp.nan)
  return after.replace(
    source=write(before.source, at, stats.sources),
    deferral=write(before.deferral, at, verdict.deferred),
    draft=write(before.draft, at, drafts),
    accept_uniform=write(before.accept_uniform, at, accept_uniforms),
    cumulative_counts=write(before.cumulative_counts, at, counts),
    logprob=write(before.logprob, at, stats.logprobs),
    logits=logits,
    fault=first_fault(before.fault, stats.fault),
  )


class Counts(NamedTuple):
  """Counts of tokens and calls, [] for one row or [B] for a batch.

  Attributes:
    blocks: Blocks since the prompt, each a call of the verifier.
    drafted: Drafted tokens.
    drafter_calls: Forward passes of the drafter.
    verifier_tokens: Tokens that the verifier read.
    examined: Drafted tokens that verification examined.
    accepted: Examined tokens that were accepted.
    deferred: Examined tokens where the rule defers.
    residual: Tokens sampled after a rejection.
    bonus: Tokens sampled after a fully accepted draft.
  """

  blocks: np.ndarray
  drafted: np.ndarray
  drafter_calls: np.ndarray
  verifier_tokens: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray
  deferred: np.ndarray
  residual: np.ndarray
  bonus: np.ndarray


def count(row: Row) -> Counts:
  """Counts tokens and calls of a fetched row, or of a batch of them.

  The counts of a shortened answer are those of the row with another `length`.
  """
  first, end = (
    np.asarray(x)[..., None] for x in (row.prompt_length, row.length)
  )
  source, index = np.asarray(row.source), np.arange(row.source.shape[-1])
  is_new = (index >= first) & (index < end)

  def count_new(mask):
    return (is_new & mask).sum(-1)

  counts = np.take_along_axis(
    np.asarray(row.cumulative_counts), end[..., None] - 1, -2
  )[..., 0, :]
  accepted = count_new(source == DRAFT)
  residual = count_new(source == RESIDUAL)
  return Counts(
    *np.moveaxis(counts, -1, 0),
    examined=accepted + residual,
    accepted=accepted,
    deferred=count_new(np.asarray(row.deferral) & (source != BONUS)),
    residual=residual,
    bonus=count_new(source == BONUS),
  )


def summarize_counts(row: Row) -> dict[str, int]:
  """Returns the counts of an answer by name."""
  counts = {name: int(n) for name, n in count(row)._asdict().items()}
  # Names in the order of the columns of records.
  blocks, verifier_tokens, drafter_calls = (
    counts.pop(name) for name in ('blocks', 'verifier_tokens', 'drafter_calls')
  )
  return counts | dict(
    verifier_calls=blocks,
    verifier_tokens=verifier_tokens,
    drafter_calls=drafter_calls,
  )
