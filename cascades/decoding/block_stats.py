"""Statistics of a decoded sequence, kept beside its state for people.

`step` returns the `BlockStats` of a block; the loop records them in the `Row`,
token by token; `count` counts, outside of compiled code. No step reads
any of it.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from cascades.decoding.faults import Fault, earlier
from cascades.decoding.state import SamplingState, write
from cascades.verification_config import BONUS, DRAFT, RESIDUAL


class BlockStats(NamedTuple):
  """Statistics of one block.

  Attributes:
    sources: Where each of its tokens came from.
    deferred: Whether the rule defers the draft that was examined there.
    logprobs: How likely the verifier at temperature 1 thought each.
    logits: All that the verifier said; None if not asked for.
    drafted: How many tokens the drafter proposed.
    drafter_calls: In how many forward passes.
    read: How many tokens the verifier had to read.
    law: What each follows, given those before; None if not asked for.
    fault: The first distribution that is not finite; the row ends there.
  """

  sources: Int[Array, 'gamma_1']
  deferred: Bool[Array, 'gamma_1']
  logprobs: Float[Array, 'gamma_1']
  logits: Float[Array, 'gamma_1 V'] | None
  drafted: Int[Array, '']
  drafter_calls: Int[Array, '']
  read: Int[Array, '']
  law: Float[Array, 'gamma_1 V'] | None
  fault: Fault


@struct.dataclass
class Row(SamplingState):
  """A sequence of a batch: its state, and of each token what its block said.

  R is the room for logits of new tokens, or there are none.
  """

  source: Int[Array, 'T']
  deferral: Bool[Array, 'T']
  # Blocks, drafted tokens, calls of the drafter, and tokens that the verifier
  # read, up to the end of the token's block.
  cumulative_counts: Int[Array, 'T 4']
  logprob: Float[Array, 'T']
  logits: Float[Array, 'R V'] | None
  # The first distribution that was not finite; what follows means nothing.
  fault: Fault


def per_token(room: int) -> dict[str, Array]:
  """Makes the statistics that a row keeps of each token, all of them 0."""
  return dict(
    source=jnp.zeros((room,), jnp.int8),
    deferral=jnp.zeros((room,), bool),
    cumulative_counts=jnp.zeros((room, 4), jnp.int32),
    logprob=jnp.zeros((room,), jnp.float32),
  )


def record(before: Row, after: Row, info: BlockStats) -> Row:
  """A row after a step, with what became of the block.

  Args:
    before: The row before the step.
    after: The row that the step gave.
    info: What it said.
  """
  at = before.length
  one = jnp.stack([1, info.drafted, info.drafter_calls, info.read])
  # A finished row is written to past its end, where nobody looks.
  cumulative_counts = jnp.broadcast_to(
    before.cumulative_counts[at - 1] + one, (len(info.sources), len(one))
  )
  logits = before.logits
  if logits is not None:
    logits = write(logits, at - before.prompt_length, info.logits)
  return after.replace(
    source=write(before.source, at, info.sources),
    # The bonus token stands where no draft was examined.
    deferral=write(
      before.deferral, at, info.deferred & (info.sources != BONUS)
    ),
    cumulative_counts=write(before.cumulative_counts, at, cumulative_counts),
    logprob=write(before.logprob, at, info.logprobs),
    logits=logits,
    fault=earlier(before.fault, info.fault),
  )


class Counts(NamedTuple):
  """Counts of tokens and calls, of one row or of many.

  Attributes:
    blocks: Blocks since the prompt: calls of the verifier.
    drafted: Tokens that the drafter proposed.
    drafter_calls: Forward passes of the drafter.
    verifier_tokens: Tokens that the verifier read.
    examined: Drafted tokens that verification reached.
    accepted: Of these, those that were kept.
    deferred: Examined tokens where the rule defers.
    residual: Tokens sampled after a rejection.
    bonus: Tokens sampled after a block kept whole.
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

  Those of an answer that is cut are those of the same row with another
  `length`.
  """
  first, end = (
    np.asarray(x)[..., None] for x in (row.prompt_length, row.length)
  )
  source, index = np.asarray(row.source), np.arange(row.source.shape[-1])
  new = (index >= first) & (index < end)

  def of(which):
    return (new & which).sum(-1)

  last = end[..., None] - 1
  cumulative_counts = np.take_along_axis(
    np.asarray(row.cumulative_counts), last, -2
  )[..., 0, :]
  accepted = of(source == DRAFT)
  residual = of(source == RESIDUAL)
  return Counts(
    *np.moveaxis(cumulative_counts, -1, 0),
    examined=accepted + residual,
    accepted=accepted,
    deferred=of(np.asarray(row.deferral)),
    residual=residual,
    bonus=of(source == BONUS),
  )
