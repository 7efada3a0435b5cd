"""Tables of the page, which are files of CSV too."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments import escapes
from experiments.analysis import comparisons
from experiments.reports import styles


class Column(NamedTuple):
  """A column of a frame that a table shows.

  The interval is shown too if the frame has its ends, as
  `comparisons.with_ends` names them.
  """

  field: str
  heading: str
  show: Callable[[Any], str]
  meaning: str = ''


# Formats of ratios, of scores and shares, and of a mean of counts.
RATIO, SCORE = styles.number, functools.partial(styles.number, decimals=3)
_MEAN = functools.partial(styles.number, decimals=1)


def _count_or_dash(value: float) -> str:
  return styles.DASH if not value or math.isnan(value) else f'{value:g}'


TASK = Column('task', 'Task', styles.words, 'name of the task')
LENIENCE = Column(
  'lenience', 'Lenience', styles.lenience, 'from strict to drafter-only'
)
GAMMA = Column('gamma', 'Gamma', _count_or_dash, 'tokens drafted per block')
DIFFERENCE = Column(
  'difference', 'Quality difference', SCORE, 'from the verifier alone, paired'
)
SPEEDUP = Column(
  'speedup', 'Modelled speed-up', RATIO, 'per token, over the verifier alone'
)
# Results of a point, after the columns that identify it.
RESULTS = (
  Column('quality', 'Quality', SCORE, 'metric of the task'),
  DIFFERENCE._replace(heading='Difference from the verifier'),
  Column(
    'latency', 'Modelled latency', RATIO, 'per emitted token; verifier = 1'
  ),
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
  Column('mean_output_tokens', 'Tokens per answer', _MEAN, 'mean'),
)
# Results of a point that was timed.
RACE = (
  Column('wall_speedup', 'Measured speed-up', RATIO, 'of wall-clock time'),
  SPEEDUP._replace(meaning='of the same answers'),
  Column(
    'by_model', 'Measured / modelled time', RATIO, '1 if the model is exact'
  ),
  Column('n', 'Prompts', _count_or_dash, 'decoded one at a time'),
)


class Cell(NamedTuple):
  """A cell: the value by which rows are sorted, its text and its interval."""

  key: object
  text: str
  ends: str = ''


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """A frame and its columns that are shown.

  The column `variant` of the frame is the curve of a row, or a label of several
  curves.
  """

  name: str
  title: str
  frame: pd.DataFrame
  columns: Sequence[Column]
  row_heading: str = 'Method'

  def rows(
    self, curve_styles: styles.CurveStyles
  ) -> Iterator[tuple[str, list[Cell]]]:
    """Yields the label and the cells of each row."""
    for row in self.frame.to_dict('records'):
      style = curve_styles.get(row['variant'])
      cells = [_cell(row, column) for column in self.columns]
      yield style.label if style else row['variant'], cells

  def csv(self) -> str:
    """Returns all columns of the frame as CSV."""
    texts = self.frame.select_dtypes(['object', 'string'])
    frame = self.frame.assign(**texts.map(escapes.for_csv))
    return frame.to_csv(index=False)


def _cell(row: Mapping, column: Column) -> Cell:
  """Returns the cell of a row in a column."""
  value, show = row[column.field], column.show
  if column.field in ('quality', 'difference'):
    show = functools.partial(styles.quality, task=row.get('task', ''))
  _, *end_names = comparisons.with_ends(column.field)
  bounds = [row.get(name, math.nan) for name in end_names]
  if all(map(math.isfinite, bounds)) and math.isfinite(value):
    return Cell(value, show(value), ' to '.join(map(show, bounds)))
  return Cell(value, show(value))
