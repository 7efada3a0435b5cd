"""Tables of the page, labels and looks of curves, and formats of numbers.

A curve is a variant of a method: its name, and its options if they are not
standard (`Record.variant`). Variants have the method's colour and mark, but are
dashed.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments import escapes
from experiments.analysis import comparisons
from experiments.analysis.runs import DRAFTER, VERIFIER, is_oracle
from experiments.tasks import quality_metric

MINUS = '\N{MINUS SIGN}'
# The text of a missing value.
DASH = '\N{EN DASH}'

# The paper's methods have Okabe and Ito's colour-blind-safe palette, darkened
# if a colour is too pale for lines on white.
# name: (label, Matplotlib's mark, colour)
_LOOKS = {
  VERIFIER: ('Verifier alone', '*', '#1d2430'),
  DRAFTER: ('Drafter alone', 'h', '#1d2430'),
  'speed': ('Speculative decoding', 'D', '#8a7a00'),
  'chow': ('Chow', 's', '#2f9bd6'),
  'diff': ('Diff', '^', '#0b4f8a'),
  'opt': ('OPT', 'v', '#b3488f'),
  'token_v1': ('TokenV1', 'P', '#e08a00'),
  'token_v2': ('TokenV2', 'X', '#00845f'),
  'token_v3': ('TokenV3', 'o', '#cf4a00'),
}
# Looks of further methods, in order of appearance.
_FURTHER = (
  ('<', '#7a2f63'),
  ('>', '#5c6b00'),
  ('p', '#6a4b2a'),
  ('d', '#00727a'),
  ('H', '#5d6878'),
  ('8', '#4a5fc1'),
  ('p', '#8e4fb8'),
  ('x', '#d1335b'),
)
# Lines of the variants of a method, in order of appearance.
_DASHES = '--', ':', '-.'


class Style(NamedTuple):
  """The label of a curve, and how Matplotlib draws it."""

  label: str
  marker: str
  colour: str
  line: str = '-'


# Styles by variant.
CurveStyles = Mapping[str, Style]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
  """Assigns a style to each variant of a method."""
  table, looks, count = {}, dict(_LOOKS), collections.Counter()
  for variant, method in methods.items():
    if method not in looks:
      further = (len(looks) - len(_LOOKS)) % len(_FURTHER)
      looks[method] = (method, *_FURTHER[further])
    style = Style(*looks[method])
    options = variant.removeprefix(method).strip()
    bonus = 'verifier' if 'bonus verifier' in options else ''
    if preset := comparisons.preset_of(method, bonus):
      style = style._replace(label=preset)
      fixed = r' ?(bonus verifier|draft argmax|gate \w+)'
      options = re.sub(fixed, '', options).strip()
    if is_oracle(method, options.partition(' ')[0]):
      options = options.replace('sequential', 'sequential oracle')
    if options:
      label = f'{style.label} ({options})'
      line = _DASHES[count[method] % len(_DASHES)]
      style = style._replace(label=label, line=line)
      count[method] += 1
    table[variant] = style
  return table


def number(value: float, decimals: int = 2) -> str:
  """Formats a number with a true minus sign; nan as a dash."""
  if math.isnan(value):
    return DASH
  if math.isinf(value):
    return '∞' if value > 0 else MINUS + '∞'
  # + 0.0 makes 0.0 of -0.0.
  return f'{round(value, decimals) + 0.0:.{decimals}f}'.replace('-', MINUS)


def small(value: float) -> str:
  """Formats a probability; those below 0.001 with a power of ten."""
  if math.isnan(value) or value >= 0.001 or value == 0:
    return number(value, 3)
  return f'{value:.0e}'.replace('-0', '-').replace('-', MINUS)


def lenience(value: float) -> str:
  """Formats a lenience with as few digits as its value has."""
  if not math.isfinite(value):
    return number(value)
  return f'{value:g}'.replace('-', MINUS)


def quality(value: float, task: str = '') -> str:
  """Formats a quality, with one decimal if it is from 0 to 100."""
  metric = quality_metric(task)
  scale = metric.scale if metric else 1
  # A perfect score of float32 may be a little above 1.
  return number(value, 1 if max(value, scale) > 1.001 else 3)


def words(name: str) -> str:
  """Returns the label of a task, with spaces."""
  return name.replace('_', ' ')


# Formats of ratios, of scores and shares, and of a mean of counts.
RATIO, SCORE = number, functools.partial(number, decimals=3)
_MEAN = functools.partial(number, decimals=1)


def _count_or_dash(value: float) -> str:
  return DASH if not value or math.isnan(value) else f'{value:g}'


class Column(NamedTuple):
  """A column of a frame that a table shows.

  The interval is shown too if the frame has its ends, as
  `comparisons.with_ends` names them.
  """

  field: str
  heading: str
  show: Callable[[Any], str]


TASK = Column('task', 'Task', words)
LENIENCE = Column('lenience', 'Lenience', lenience)
GAMMA = Column('gamma', 'Gamma', _count_or_dash)
DIFFERENCE = Column('difference', 'Quality difference', SCORE)
SPEEDUP = Column('speedup', 'Modelled speed-up', RATIO)
# Results of a point, after the columns that identify it.
RESULTS = (
  Column('quality', 'Quality', SCORE),
  DIFFERENCE._replace(heading='Difference from the verifier'),
  Column('latency', 'Modelled latency', RATIO),
  Column('acceptance_rate', 'Acceptance rate', SCORE),
  Column('rejection_rate', 'Rejection rate', SCORE),
  Column('deferral_rate', 'Deferral rate', SCORE),
  Column('block_efficiency', 'Block efficiency', RATIO),
  Column('verifier_calls_per_token', 'Verifier calls per token', RATIO),
  Column('drafter_calls_per_token', 'Drafter calls per token', RATIO),
  Column('mean_output_tokens', 'Tokens per answer', _MEAN),
)
# Results of a point that was timed.
RACE = (
  Column('wall_speedup', 'Measured speed-up', RATIO),
  SPEEDUP,
  Column('by_model', 'Measured / modelled time', RATIO),
  Column('n', 'Prompts', _count_or_dash),
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

  def rows(self, curve_styles: CurveStyles) -> Iterator[tuple[str, list[Cell]]]:
    """Yields the label and the cells of each row."""
    for row in self.frame.to_dict('records'):
      style = curve_styles.get(row['variant'])
      cells = [_cell(row, column) for column in self.columns]
      yield style.label if style else row['variant'], cells

  def csv(self) -> str:
    """Returns all columns of the frame as CSV."""
    frame = self.frame.map(escapes.for_csv).rename(columns=escapes.for_csv)
    return frame.to_csv(index=False)


def _cell(row: Mapping, column: Column) -> Cell:
  """Returns the cell of a row in a column."""
  value, show = row[column.field], column.show
  if column.field.endswith(('quality', 'difference')):
    show = functools.partial(quality, task=row.get('task', ''))
  _, *end_names = comparisons.with_ends(column.field)
  bounds = [row.get(name, math.nan) for name in end_names]
  if all(map(math.isfinite, bounds)) and math.isfinite(value):
    return Cell(value, show(value), ' to '.join(map(show, bounds)))
  return Cell(value, show(value))
