"""The blocks of an answer: their tokens and their modelled times.

Times are modelled: counted calls times measured unit costs.
"""

import dataclasses
import itertools

from experiments.analysis import reference_points
from experiments.records import SOURCES, Record, Trace, metrics, unit_costs

# Indices into `SOURCES`.
DRAFT, RESIDUAL = SOURCES.index('draft'), SOURCES.index('residual')


@dataclasses.dataclass(frozen=True)
class Block:
  """A block of an answer and its modelled times.

  Attributes:
    tokens: Positions of its tokens in the answer.
    start: Modelled seconds from the start of the answer to that of the block.
    drafting: Seconds that the drafter takes.
    verifying: Seconds that the verifier takes after the drafter.
  """

  tokens: range
  start: float
  drafting: float
  verifying: float

  @property
  def drafts_end(self) -> float:
    """Seconds at which the drafts of the block are complete."""
    return self.start + self.drafting

  @property
  def end(self) -> float:
    """Seconds at which the block is complete."""
    return self.start + self.drafting + self.verifying


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The modelled times of all blocks of an answer.

  Attributes:
    blocks: The blocks in order.
    step: Seconds of one drafter call; 0 if the drafter was not called.
    pace: Seconds per token, relative to the verifier alone.
  """

  blocks: tuple[Block, ...]
  step: float
  pace: float

  @property
  def end(self) -> float:
    """Seconds at which the answer is complete."""
    return self.blocks[-1].end if self.blocks else 0.0


def duration(record: Record, costs: unit_costs.Costs) -> float:
  """Returns the modelled seconds of an answer."""
  return sum(metrics.modelled_s(record, costs))


def split(record: Record, trace: Trace) -> list[range]:
  """Returns the positions of each block's tokens.

  A block holds its accepted drafts and the token after them.
  """
  count = len(trace.tokens)
  ends = [i + 1 for i in range(count) if trace.sources[i] != DRAFT]
  if not record.gamma:
    ends = range(1, count + 1)
  # An answer may end inside a block.
  edges = list(dict.fromkeys((0, *ends, count)))
  return [range(*edge) for edge in itertools.pairwise(edges)]


def timeline(record: Record, trace: Trace, costs: unit_costs.Costs) -> Timeline:
  """Models when each block of an answer begins and ends.

  All blocks of an answer cost the same, because each is drafted and verified to
  its full length. The blocks of a sequential cascade cost as much as they have
  tokens.
  """
  drafting, verifying = metrics.modelled_s(record, costs)
  token_ranges = split(record, trace)
  draft_weights = [1.0] * len(token_ranges)
  verify_weights = [1.0] * len(token_ranges)
  if record.gamma and record.verification == reference_points.SEQUENTIAL:
    draft_weights = [float(len(tokens)) for tokens in token_ranges]
    verify_weights = [
      float(trace.sources[tokens[-1]] == RESIDUAL) for tokens in token_ranges
    ]
  blocks, start = [], 0.0
  for tokens, d, v in zip(
    token_ranges, draft_weights, verify_weights, strict=True
  ):
    block = Block(
      tokens,
      start,
      drafting=drafting * d / sum(draft_weights),
      verifying=verifying * v / (sum(verify_weights) or 1),
    )
    blocks.append(block)
    start = block.end
  # With several drafts, one drafter call makes a token of each.
  step = costs.drafter(record.drafts) if record.drafter_calls else 0.0
  pace = start / costs.verifier_token_s / max(1, record.emitted)
  return Timeline(tuple(blocks), step, pace)
