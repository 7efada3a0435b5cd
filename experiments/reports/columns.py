"""Columns of the page's tables: what they are called, and how values look."""

import dataclasses
import math
from collections.abc import Callable

from experiments.reports import styles


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    field: The frame's column; rows are sorted by it. Where the frame has its
      ends, as `comparisons.with_ends` names them, the interval is shown too.
    heading: What people read.
    show: A value as text.
    meaning: Shown when the pointer rests on the heading.
  """

  field: str
  heading: str
  show: Callable[[float], str]
  meaning: str


# --- How values look.


def digits(n: int) -> Callable[[float], str]:
  """For numbers with so many digits after the point."""
  return lambda value: styles.number(value, n)


def count(value: float) -> str:
  """For whole numbers."""
  return styles.number(value, 0)


def size(value: float) -> str:
  """For whole numbers of which 0 is none."""
  return styles.DASH if not value or math.isnan(value) else f'{value:g}'


def p_value(value: float) -> str:
  """For p-values, of which small ones have powers of ten."""
  if math.isnan(value) or value >= 0.001:
    return styles.number(value, 3)
  return f'{value:.0e}'.replace('-', styles.MINUS)


def texts(value: object) -> str:
  """For words, of which nan is none."""
  return styles.DASH if value is None or value != value else str(value)


def yes(value: object) -> str:
  """For yes and no."""
  return '✓' if value else '✗'


# --- Which point a row is.

TASK = Column('task', 'Task', styles.words, 'what was asked')
TEMPERATURE = Column(
  'temperature', 'Temperature', '{:g}'.format, 'of both models'
)
RUN = Column('run', 'Run', texts, 'the workdir')
BATCH = Column('batch_size', 'Batch', size, 'rows decoded at a time')
LENIENCE = Column('lenience', 'Lenience', styles.lenience, 'of the point')
GAMMA = Column('gamma', 'Gamma', size, 'tokens drafted per block')

# --- What is said of it.

EXAMPLES = Column('n', 'Examples', count, 'answered by both')
QUALITY = Column('quality', 'Quality', digits(3), "the task's own metric")
DIFFERENCE = Column(
  'difference',
  'Quality gained',
  digits(3),
  "over the verifier's, on the same examples, with its 95 % interval",
)
SPEEDUP = Column(
  'speedup',
  'Speed-up',
  digits(2),
  "per token; the verifier's latency by the method's, with its 95 % interval",
)
BEST_SPEEDUP = Column('best_speedup', 'Speed-up', digits(2), 'per token')
LATENCY = Column(
  'latency', 'Latency', digits(2), 'modelled; the verifier alone is 1'
)

# Columns of the summary, of which `GAMMA` is shown after the first if need be.
SUMMARY = (
  dataclasses.replace(LENIENCE, meaning='how readily drafts are kept'),
  QUALITY,
  Column(
    'relative_latency',
    'Latency',
    digits(2),
    'modelled, per emitted token; the verifier alone is 1',
  ),
  Column('acceptance_rate', 'Accepted', digits(3), 'of examined drafts'),
  Column('rejection_rate', 'Rejected', digits(3), 'of examined drafts'),
  Column(
    'deferral_rate',
    'Deferred',
    digits(3),
    'examined positions where the rule defers to the verifier',
  ),
  Column(
    'block_efficiency',
    'Tokens per block',
    digits(2),
    'block efficiency: emitted tokens per verifier call',
  ),
  Column(
    'verifier_calls_per_token', 'Verifier calls', digits(2), 'per emitted token'
  ),
  Column(
    'drafter_calls_per_token', 'Drafter calls', digits(2), 'per emitted token'
  ),
  Column('mean_output_tokens', 'Output tokens', digits(1), 'per example'),
)
