"""Statistics of blocks and sequences, kept beside the decoding state.

`step` returns a `Block`; the loop records it in the `Row`, token by token;
`count` sums outside of compiled code. No step reads them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cascades.decoding.state import Row, write
from cascades.decoding.step import Block
from cascades.verification_config import BONUS, DRAFT, RESIDUAL


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


def record(before: Row, after: Row, block: Block) -> Row:
  """Records the statistics of a block in a row."""
  index = jnp.arange(len(block.tokens))
  # `verify` fills in the fields that may be None.
  verdict: Any = block.verdict
  sources = jnp.where(index < verdict.num_accepted, DRAFT, verdict.next_source)
  at = before.length
  counts = jnp.stack(block.counts)
  # A finished row is written to past its end, where nothing is read.
  counts = jnp.broadcast_to(
    before.cumulative_counts[at - 1] + counts, (len(index), len(counts))
  )
  logits = before.logits
  if logits is not None and block.logits is not None:
    logits = write(logits, at - before.prompt_length, block.logits)
  law_logprobs = before.law_logprobs
  if law_logprobs is not None and block.law_logprobs is not None:
    law_logprobs = write(law_logprobs, at, block.law_logprobs)
  # At the bonus token no draft was examined.
  is_examined = sources != BONUS
  drafts = jnp.where(is_examined, verdict.drafts, -1)
  accept_uniforms = jnp.where(is_examined, verdict.accept_uniforms, jnp.nan)
  return after.replace(
    source=write(before.source, at, sources),
    deferral=write(before.deferral, at, verdict.deferred),
    draft=write(before.draft, at, drafts),
    accept_uniform=write(before.accept_uniform, at, accept_uniforms),
    cumulative_counts=write(before.cumulative_counts, at, counts),
    logprob=write(before.logprob, at, block.logprobs),
    logits=logits,
    law_logprobs=law_logprobs,
    fault=jax.tree.map(
      lambda x, y: jnp.where(before.fault.culprit > 0, x, y),
      before.fault,
      block.fault,
    ),
  )


class Counts(NamedTuple):
  """Counts of tokens and calls, [] for one row or [B] for a batch.

  Attributes:
    drafted: Drafted tokens.
    examined: Drafted tokens that verification examined.
    accepted: Examined tokens that were accepted.
    deferred: Examined tokens where the rule defers.
    residual: Tokens sampled after a rejection.
    bonus: Tokens sampled after a fully accepted draft.
    blocks: Blocks since the prompt, each a call of the verifier.
    verifier_tokens: Tokens that the verifier read.
    drafter_calls: Forward passes of the drafter.
  """

  drafted: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray
  deferred: np.ndarray
  residual: np.ndarray
  bonus: np.ndarray
  blocks: np.ndarray
  verifier_tokens: np.ndarray
  drafter_calls: np.ndarray


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
  blocks, drafted, drafter_calls, verifier_tokens = np.moveaxis(counts, -1, 0)
  return Counts(
    drafted=drafted,
    examined=accepted + residual,
    accepted=accepted,
    deferred=count_new(np.asarray(row.deferral) & (source != BONUS)),
    residual=residual,
    bonus=count_new(source == BONUS),
    blocks=blocks,
    verifier_tokens=verifier_tokens,
    drafter_calls=drafter_calls,
  )


def summarize_counts(row: Row) -> dict[str, int]:
  """Returns the counts of an answer by the names and order of records."""
  return {
    'verifier_calls' if name == 'blocks' else name: int(n)
    for name, n in count(row)._asdict().items()
  }
