"""Columns of the page's tables: headings, tooltips and number formats."""

import dataclasses
import math
from collections.abc import Callable

from experiments.reports import styles


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    field: Column of the frame, by which rows are sorted. The interval is shown
      too if the frame has its ends, as `comparisons.with_ends` names them.
    heading: Heading of the column.
    show: Formats a value as text.
    meaning: Tooltip of the heading.
  """

  field: str
  heading: str
  show: Callable[[float], str]
  meaning: str


# --- Formats of values.


def number_format(decimals: int) -> Callable[[float], str]:
  """Returns a format with a fixed number of decimals."""
  return lambda value: styles.number(value, decimals)


# Formats of scores and shares, and of ratios.
SCORE, RATIO = number_format(3), number_format(2)


def count(value: float) -> str:
  """Formats a whole number."""
  return styles.number(value, 0)


def count_or_dash(value: float) -> str:
  """Formats a whole number; 0 and nan as a dash."""
  return styles.DASH if not value or math.isnan(value) else f'{value:g}'


def p_value(value: float) -> str:
  """Formats a p-value; those below 0.001 with a power of ten."""
  if math.isnan(value) or value >= 0.001:
    return styles.number(value, 3)
  return f'{value:.0e}'.replace('-', styles.MINUS)


def text_or_dash(value: object) -> str:
  """Formats a text; None and nan as a dash."""
  return styles.DASH if value is None or value != value else str(value)


def check_mark(value: object) -> str:
  """Formats a truth value as a check mark or a cross."""
  return '✓' if value else '✗'


# --- Columns that identify a point.

TASK = Column('task', 'Task', styles.words, 'name of the task')
TEMPERATURE = Column(
  'temperature', 'Temperature', '{:g}'.format, 'of both models'
)
RUN = Column('run', 'Run', text_or_dash, 'name of the workdir')
BATCH = Column('batch_size', 'Batch', count_or_dash, 'rows decoded at a time')
LENIENCE = Column('lenience', 'Lenience', styles.lenience, 'of the method')
GAMMA = Column('gamma', 'Gamma', count_or_dash, 'tokens drafted per block')

# --- Columns of results.

EXAMPLES = Column('n', 'Examples', count, 'answered by both')
QUALITY = Column('quality', 'Quality', SCORE, 'metric of the task')
DIFFERENCE = Column(
  'difference',
  'Quality gained',
  SCORE,
  'over the verifier, on the same examples, with its 95 % interval',
)
SPEEDUP = Column(
  'speedup',
  'Speed-up',
  RATIO,
  "per token: the verifier's latency over the method's, with its 95 % interval",
)
BEST_SPEEDUP = Column('best_speedup', 'Best: speed-up', RATIO, 'per token')
LATENCY = Column('latency', 'Latency', RATIO, 'modelled; verifier alone = 1')

# Columns of the summary; `GAMMA` is shown after the first if gamma varies.
SUMMARY = (
  dataclasses.replace(
    LENIENCE, meaning='from strict (lossless) to drafter-only'
  ),
  QUALITY,
  Column(
    'relative_latency',
    'Latency',
    RATIO,
    'modelled, per emitted token; verifier alone = 1',
  ),
  Column('acceptance_rate', 'Accepted', SCORE, 'share of the examined drafts'),
  Column('rejection_rate', 'Rejected', SCORE, 'share of the examined drafts'),
  Column(
    'deferral_rate',
    'Deferred',
    SCORE,
    'share of the examined positions where the rule defers to the verifier',
  ),
  Column(
    'block_efficiency',
    'Tokens per block',
    RATIO,
    'block efficiency: emitted tokens per verifier call',
  ),
  Column(
    'verifier_calls_per_token', 'Verifier calls', RATIO, 'per emitted token'
  ),
  Column(
    'drafter_calls_per_token', 'Drafter calls', RATIO, 'per emitted token'
  ),
  Column(
    'mean_output_tokens', 'Output tokens', number_format(1), 'per example'
  ),
)
