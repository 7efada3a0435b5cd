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
BATCH = Column('batch_size', 'Batch', count_or_dash, 'prompts at a time')
LENIENCE = Column(
  'lenience', 'Lenience', styles.lenience, 'from strict to drafter-only'
)
GAMMA = Column('gamma', 'Gamma', count_or_dash, 'tokens drafted per block')

# --- Columns of results.

EXAMPLES = Column('n', 'Examples', count, 'answered by both')
QUALITY = Column('quality', 'Quality', SCORE, 'metric of the task')
DIFFERENCE = Column(
  'difference', 'Quality difference', SCORE, 'from the verifier alone, paired'
)
SPEEDUP = Column(
  'speedup', 'Modelled speed-up', RATIO, 'per token, over the verifier alone'
)
BEST_SPEEDUP = dataclasses.replace(
  SPEEDUP, field='best_speedup', heading='Best: modelled speed-up'
)
LATENCY = Column(
  'latency', 'Modelled latency', RATIO, 'per emitted token; verifier alone = 1'
)

# Columns of the summary; `GAMMA` is shown after the first if gamma varies.
SUMMARY = (
  LENIENCE,
  QUALITY,
  dataclasses.replace(DIFFERENCE, heading='Difference from the verifier'),
  dataclasses.replace(LATENCY, field='relative_latency'),
  Column('acceptance_rate', 'Acceptance rate', SCORE, 'of examined drafts'),
  Column('rejection_rate', 'Rejection rate', SCORE, 'of examined drafts'),
  Column('deferral_rate', 'Deferral rate', SCORE, 'of examined positions'),
  Column(
    'block_efficiency', 'Block efficiency', RATIO, 'tokens per verifier call'
  ),
  Column(
    'verifier_calls_per_token', 'Verifier calls per token', RATIO, 'of output'
  ),
  Column(
    'drafter_calls_per_token', 'Drafter calls per token', RATIO, 'of output'
  ),
  Column('mean_output_tokens', 'Tokens per answer', number_format(1), 'mean'),
)
