"""The summary as an HTML table that can be sorted."""

import dataclasses
import html
import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from cascades.report import plots, styles


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of the table.

  Attributes:
    field: Of the summary; rows are sorted by it.
    heading: What people read.
    show: A value as text.
    meaning: Shown when the pointer rests on the heading.
  """

  field: str
  heading: str
  show: Callable[[float], str]
  meaning: str


def _digits(n: int) -> Callable[[float], str]:
  return lambda value: styles.number(value, n)


GAMMA = Column(
  'gamma',
  'Gamma',
  lambda value: str(int(value)) if value else styles.number(math.nan),
  'tokens drafted per block',
)
COLUMNS = (
  Column(
    'lenience', 'Lenience', styles.lenience, 'how readily drafts are kept'
  ),
  Column('quality', 'Quality', _digits(3), "the task's own metric"),
  Column(
    'relative_latency',
    'Latency',
    _digits(2),
    'modelled, per emitted token; the verifier alone is 1',
  ),
  Column('acceptance_rate', 'Accepted', _digits(3), 'of examined drafts'),
  Column('rejection_rate', 'Rejected', _digits(3), 'of examined drafts'),
  Column(
    'deferral_rate',
    'Deferred',
    _digits(3),
    'examined positions where the rule defers to the verifier',
  ),
  Column(
    'block_efficiency',
    'Tokens per block',
    _digits(2),
    'block efficiency: emitted tokens per verifier call',
  ),
  Column(
    'verifier_calls_per_token',
    'Verifier calls',
    _digits(2),
    'per emitted token',
  ),
  Column(
    'drafter_calls_per_token', 'Drafter calls', _digits(2), 'per emitted token'
  ),
  Column('mean_output_tokens', 'Output tokens', _digits(1), 'per example'),
  Column(
    'wall_s', 'Wall\u00a0s', _digits(1), 'seconds on the clock, whole point'
  ),
)


def _cell(value: float, text: str) -> str:
  # Every browser sorts by this number; nan goes last either way.
  key = 'nan' if math.isnan(value) else repr(float(value))
  return f'<td data-key="{key.replace("inf", "Infinity")}">{text}</td>'


_ENDS = ('low', 'high')


def _row(
  row: Mapping, table: Mapping[str, styles.Style], columns: Sequence[Column]
) -> str:
  style = table[row['variant']]
  cells = [
    f'<th scope="row" data-key="{html.escape(style.label)}">'
    f'{plots.marker(style)} {html.escape(style.label)}</th>'
  ]
  for column in columns:
    value = float(row[column.field])
    text = column.show(value)
    if column.field == 'quality' and not math.isnan(value):
      low, high = (styles.number(row[f'quality_{e}'], 3) for e in _ENDS)
      text += f' <span class="interval">{low} to {high}</span>'
    cells.append(_cell(value, text))
  return f'<tr>{"".join(cells)}</tr>'


def summary(
  frame: pd.DataFrame,
  table: Mapping[str, styles.Style],
  gamma: bool = False,
) -> str:
  """The rows of a frame, in its order.

  Args:
    frame: Summary rows of one task, with their `variant`.
    table: Styles by variant.
    gamma: Whether rows differ in gamma, so that it needs a column.
  """
  columns = [c for c in (COLUMNS[0], GAMMA) if gamma or c is not GAMMA]
  columns += COLUMNS[1:]
  heads = ''.join(
    f'<th scope="col" title="{html.escape(c.meaning)}">'
    f'<button type="button">{html.escape(c.heading)}</button></th>'
    for c in columns
  )
  rows = '\n'.join(
    _row(row, table, columns) for row in frame.to_dict('records')
  )
  return (
    '<div class="scroll" tabindex="0"><table class="summary"><thead><tr>'
    f'<th scope="col"><button type="button">Method</button></th>{heads}'
    f'</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
  )


def settings(config: Mapping[str, object]) -> str:
  """A run's settings, a line each."""
  rows = ''.join(
    f'<tr><th scope="row">{html.escape(str(key))}</th>'
    f'<td>{html.escape(_setting(value))}</td></tr>'
    for key, value in config.items()
  )
  return f'<table class="settings">{rows}</table>'


def _setting(value: object) -> str:
  if isinstance(value, list | tuple):
    return ', '.join(_setting(v) for v in value)
  if isinstance(value, dict):
    return ', '.join(f'{k}: {_setting(v)}' for k, v in value.items())
  return str(value)
