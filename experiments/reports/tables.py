"""Tables as sortable HTML for the page, and as CSV and Markdown.

All forms of a table are made of the same frame and columns.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments import escapes
from experiments.analysis import comparisons
from experiments.reports import columns, drawings, styles
from experiments.reports.columns import Column


def _cell(value: float | str, text: str) -> str:
  """Returns an HTML cell with its sort key."""
  if isinstance(value, str):
    key = escapes.for_html(value)
  else:
    # A number of JavaScript; nan is sorted last in both directions.
    key = 'nan' if math.isnan(value) else repr(float(value))
    key = key.replace('inf', 'Infinity')
  return f'<td data-key="{key}">{text}</td>'


def summary(
  frame: pd.DataFrame,
  curve_styles: styles.CurveStyles,
  show_gamma: bool = False,
) -> str:
  """Returns the rows of a summary as a sortable HTML table."""
  first, *rest = columns.SUMMARY
  gamma = [columns.GAMMA] if show_gamma else []
  return _sortable(frame, [first, *gamma, *rest], curve_styles)


def settings(config: Mapping[str, object]) -> str:
  """Returns the settings of a run as an HTML table, a row per setting."""
  rows = ''.join(
    f'<tr><th scope="row">{escapes.for_html(str(key))}</th>'
    f'<td>{escapes.for_html(_setting(value))}</td></tr>'
    for key, value in config.items()
  )
  return f'<table class="settings">{rows}</table>'


def _setting(value: object, depth: int = 0) -> str:
  """Returns a value as text, without brackets down to a depth of 3."""
  if depth > 3:
    return str(value)
  if isinstance(value, list | tuple):
    return ', '.join(_setting(v, depth + 1) for v in value)
  if isinstance(value, dict):
    return ', '.join(f'{k}: {_setting(v, depth + 1)}' for k, v in value.items())
  return str(value)


# --- Tables of a frame and its columns.


@dataclasses.dataclass(frozen=True)
class Table:
  """A frame and its columns that are shown.

  Attributes:
    name: Name of the files, without an ending.
    title: Title above the table.
    frame: Rows of the table; `variant` is the curve of a row, or a label of
      several curves.
    columns: Columns that are shown after the name of the method.
    csv_frame: Rows of the CSV file; None if they are those of `frame`.
    row_heading: Heading of the first column.
  """

  name: str
  title: str
  frame: pd.DataFrame
  columns: Sequence[Column]
  csv_frame: pd.DataFrame | None = None
  row_heading: str = 'Method'

  def csv(self, notice: str = '') -> str:
    """Returns all columns of the table as CSV."""
    frame = self.frame if self.csv_frame is None else self.csv_frame
    if notice:
      frame = frame.assign(note=notice)
    texts = frame.select_dtypes(['object', 'string'])
    return frame.assign(**texts.map(escapes.for_csv)).to_csv(index=False)


def _name(row: Mapping, curve_styles: styles.CurveStyles) -> str:
  """Returns the label of the curve or the curves of a row."""
  style = curve_styles.get(row['variant'])
  return style.label if style else row['variant']


def _cell_texts(row: Mapping, column: Column) -> tuple[str, str]:
  """Returns the texts of a cell and of its interval, which may be empty."""
  value, show = row[column.field], column.show
  if column.field in ('quality', 'difference'):
    show = functools.partial(styles.quality, task=row.get('task', ''))
  text, ends = show(value), ''
  _, *end_names = comparisons.with_ends(column.field)
  bounds = [row.get(name, math.nan) for name in end_names]
  if all(map(math.isfinite, bounds)) and math.isfinite(value):
    ends = f'{show(bounds[0])} to {show(bounds[1])}'
  return text, ends


def _sortable(
  frame: pd.DataFrame,
  columns: Sequence[Column],
  curve_styles: styles.CurveStyles,
  row_heading: str = 'Method',
) -> str:
  """Returns an HTML table that is sorted by a click on a heading."""
  headings = ''.join(
    f'<th scope="col" title="{escapes.for_html(c.meaning)}">'
    f'<button type="button">{escapes.for_html(c.heading)}</button></th>'
    for c in columns
  )
  rows = []
  for row in frame.to_dict('records'):
    style = curve_styles.get(row['variant'])
    name = escapes.for_html(_name(row, curve_styles))
    mark = f'{drawings.marker(style)} ' if style else ''
    cells = [f'<th scope="row" data-key="{name}">{mark}{name}</th>']
    for column in columns:
      text, ends = map(escapes.for_html, _cell_texts(row, column))
      if ends:
        text += f' <span class="interval">{ends}</span>'
      cells.append(_cell(row[column.field], text))
    rows.append(f'<tr>{"".join(cells)}</tr>')
  body = '\n'.join(rows)
  return (
    '<div class="scroll" tabindex="0"><table class="summary"><thead><tr>'
    '<th scope="col"><button type="button">'
    f'{escapes.for_html(row_heading)}</button></th>{headings}'
    f'</tr></thead><tbody>\n{body}\n</tbody></table></div>'
  )


def interactive(
  table: Table, curve_styles: styles.CurveStyles, notice: str = ''
) -> str:
  """Returns a table as HTML with its title."""
  text = f'<p class="notice">{escapes.for_html(notice)}</p>\n' if notice else ''
  rows = _sortable(table.frame, table.columns, curve_styles, table.row_heading)
  return f'<h3>{escapes.for_html(table.title)}</h3>\n{text}{rows}'


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
  for row in table.frame.to_dict('records'):
    cells = [_name(row, curve_styles)]
    for column in table.columns:
      text, ends = _cell_texts(row, column)
      cells.append(f'{text} ({ends})' if ends else text)
    rows.append(cells)
  parts = [
    f'**{table.title}**',
    notice,
    '\n'.join(map(line, rows)),
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'
