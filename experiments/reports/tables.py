"""Tables of the page, and the same tables as CSV and Markdown."""

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
  meaning: str


# --- Formats of values.


def number_format(decimals: int) -> Callable[[float], str]:
  """Returns a format with a fixed number of decimals."""
  return lambda value: styles.number(value, decimals)


# Formats of scores and shares, of ratios, and of whole numbers.
SCORE, RATIO, COUNT = map(number_format, (3, 2, 0))


def count_or_dash(value: float) -> str:
  """Formats a whole number; 0 and nan as a dash."""
  return styles.DASH if not value or math.isnan(value) else f'{value:g}'


def text_or_dash(value: object) -> str:
  """Formats a text; None and nan as a dash."""
  return styles.DASH if value is None or value != value else str(value)


# --- Columns.

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
DIFFERENCE = Column(
  'difference', 'Quality difference', SCORE, 'from the verifier alone, paired'
)
SPEEDUP = Column(
  'speedup', 'Modelled speed-up', RATIO, 'per token, over the verifier alone'
)
BEST_SPEEDUP = SPEEDUP._replace(
  field='best_speedup', heading='Best: modelled speed-up'
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
  Column('mean_output_tokens', 'Tokens per answer', number_format(1), 'mean'),
)
# Results of a point that was timed.
RACE = (
  Column('wall_speedup', 'Measured speed-up', RATIO, 'of wall-clock time'),
  SPEEDUP._replace(meaning='of the same answers'),
  Column(
    'by_model', 'Measured / modelled time', RATIO, '1 if the model is exact'
  ),
  Column('n', 'Prompts', COUNT, 'decoded one at a time'),
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

  def csv(self, notice: str = '') -> str:
    """Returns all columns of the frame as CSV."""
    frame = self.frame.assign(note=notice) if notice else self.frame
    texts = frame.select_dtypes(['object', 'string'])
    return frame.assign(**texts.map(escapes.for_csv)).to_csv(index=False)


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


def markdown(
  table: Table, curve_styles: styles.CurveStyles, notice: str = ''
) -> str:
  """Returns a table as Markdown with its title."""

  def line(cells: Sequence[str]) -> str:
    return f'| {" | ".join(map(escapes.for_markdown, cells))} |'

  # All columns but the first are right-aligned.
  rows = [
    [table.row_heading, *(c.heading for c in table.columns)],
    ['---', *['---:'] * len(table.columns)],
  ]
  for name, cells in table.rows(curve_styles):
    texts = [f'{x.text} ({x.ends})' if x.ends else x.text for x in cells]
    rows.append([name, *texts])
  parts = [f'**{table.title}**', notice, '\n'.join(map(line, rows))]
  return '\n\n'.join(filter(None, parts)) + '\n'
