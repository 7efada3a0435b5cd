"""An answer's blocks: whose tokens they are, and when they were there.

The clock is the modelled one: counted calls times measured unit costs.
"""

import dataclasses
import itertools

from experiments.analysis import reference_points
from experiments.records import SOURCES, Record, Trace, metrics

# Places in `SOURCES`.
DRAFT, RESIDUAL = SOURCES.index('draft'), SOURCES.index('residual')


@dataclasses.dataclass(frozen=True)
class Block:
  """A block of an answer on the clock.

  Attributes:
    tokens: Places of its tokens in the answer.
    start: When it begins, in modelled seconds from the first token on.
    drafting: Seconds that the drafter then works.
    verifying: Seconds that the verifier works after that.
  """

  tokens: range
  start: float
  drafting: float
  verifying: float

  @property
  def drafted(self) -> float:
    """When its drafts are there, in seconds."""
    return self.start + self.drafting

  @property
  def end(self) -> float:
    """When all of it is there, in seconds."""
    return self.start + self.drafting + self.verifying


@dataclasses.dataclass(frozen=True)
class Timeline:
  """When the tokens of an answer were there.

  Attributes:
    blocks: All of them, in order.
    step: Seconds of one call of the drafter; 0 where it was not called.
    pace: Seconds of a token, by those of the verifier alone.
  """

  blocks: tuple[Block, ...]
  step: float
  pace: float

  @property
  def end(self) -> float:
    """When the answer is there, in seconds."""
    return self.blocks[-1].end if self.blocks else 0.0


def duration(record: Record, costs: metrics.Costs) -> float:
  """Modelled seconds of an answer."""
  return sum(metrics.modelled_s(record, costs))


def split(record: Record, trace: Trace) -> list[range]:
  """Places of each block's tokens: drafts, and the token that ends them."""
  count = len(trace.tokens)
  ends = [i + 1 for i in range(count) if trace.sources[i] != DRAFT]
  if not record.gamma:
    ends = range(1, count + 1)
  # An answer may end inside a block.
  edges = list(dict.fromkeys((0, *ends, count)))
  return [range(*edge) for edge in itertools.pairwise(edges)]


def timeline(record: Record, trace: Trace, costs: metrics.Costs) -> Timeline:
  """When the blocks of an answer begin and end.

  All blocks cost the same, for all are drafted and read whole. Not so those of
  a sequential cascade, which are as long as they have to be.

  Args:
    record: What came of the example.
    trace: Its tokens.
    costs: Measured unit costs.
  """
  drafting, verifying = metrics.modelled_s(record, costs)
  found = split(record, trace)
  drafted, read = [1.0] * len(found), [1.0] * len(found)
  if record.gamma and record.verification == reference_points.SEQUENTIAL:
    drafted = [float(len(block)) for block in found]
    read = [float(trace.sources[block[-1]] == RESIDUAL) for block in found]
  blocks, at = [], 0.0
  for tokens, d, r in zip(found, drafted, read, strict=True):
    drafts, reads = (
      drafting * d / sum(drafted),
      verifying * r / (sum(read) or 1),
    )
    blocks.append(Block(tokens, at, drafts, reads))
    at = blocks[-1].end
  # Of the drafter, one call for a token of each of its drafts.
  step = costs.drafter(record.drafts) if record.drafter_calls else 0.0
  pace = at / costs.verifier_token_s / max(1, record.emitted)
  return Timeline(tuple(blocks), step, pace)
