"""Tables: for the page, where they can be sorted, and as Markdown and LaTeX.

All of them are made of the same frames and columns.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from cascades.untrusted import display
from experiments.analysis import comparisons
from experiments.reports import columns, drawings, styles
from experiments.reports.columns import Column


def _cell(value: float | str, text: str) -> str:
  """A cell, and what it is sorted by."""
  if isinstance(value, str):
    key = display.for_html(value)
  else:
    # Every browser sorts by this number; nan goes last either way.
    key = 'nan' if math.isnan(value) else repr(float(value))
    key = key.replace('inf', 'Infinity')
  return f'<td data-key="{key}">{text}</td>'


def summary(
  frame: pd.DataFrame,
  looks: Mapping[str, styles.Style],
  gamma: bool = False,
) -> str:
  """The rows of a frame, in its order.

  Args:
    frame: Rows of the summary, of one task, with their `variant`.
    looks: Styles by variant.
    gamma: Whether rows differ in gamma, so that it needs a column.
  """
  first, *others = columns.SUMMARY
  told = [columns.GAMMA] if gamma else []
  return _sortable(frame, [first, *told, *others], looks)


def settings(config: Mapping[str, object]) -> str:
  """A run's settings, a line each.

  Args:
    config: Values that JSON can hold, by their names.
  """
  rows = ''.join(
    f'<tr><th scope="row">{display.for_html(str(key))}</th>'
    f'<td>{display.for_html(_setting(value))}</td></tr>'
    for key, value in config.items()
  )
  return f'<table class="settings">{rows}</table>'


def _setting(value: object, inner: int = 0) -> str:
  """A value without brackets, unless it lies in several others."""
  if inner > 3:
    return str(value)
  if isinstance(value, list | tuple):
    return ', '.join(_setting(v, inner + 1) for v in value)
  if isinstance(value, dict):
    return ', '.join(f'{k}: {_setting(v, inner + 1)}' for k, v in value.items())
  return str(value)


# --- Tables of any frame.


@dataclasses.dataclass(frozen=True)
class Table:
  """A frame with what is shown of it.

  Attributes:
    name: What its files are called, without an ending.
    title: What people read above it.
    frame: Its rows; `variant` is the curve that a row is of, or what people
      call the several that it is of.
    columns: What is shown, after the method's name.
    whole: What the CSV file holds, where that is more than is shown.
  """

  name: str
  title: str
  frame: pd.DataFrame
  columns: Sequence[Column]
  whole: pd.DataFrame | None = None

  def csv(self, note: str = '') -> str:
    """All of its numbers.

    Args:
      note: What has to be said of them, in a column of its own; may be empty.
    """
    whole = self.frame if self.whole is None else self.whole
    if note:
      whole = whole.assign(note=note)
    texts = whole.select_dtypes(['object', 'string'])
    return whole.assign(**texts.map(display.for_csv)).to_csv(index=False)


def _name(row: Mapping, looks: Mapping[str, styles.Style]) -> str:
  """Whom a row is of: a curve, or several that it names itself."""
  style = looks.get(row['variant'])
  return style.label if style else row['variant']


def _shown(row: Mapping, column: Column) -> tuple[str, str]:
  """A cell's text, and that of its interval, which may be empty."""
  value = row[column.field]
  text, ends = column.show(value), ''
  _, *ends_of = comparisons.with_ends(column.field)
  bounds = [row.get(name, math.nan) for name in ends_of]
  if all(map(math.isfinite, bounds)) and math.isfinite(value):
    ends = f'{column.show(bounds[0])} to {column.show(bounds[1])}'
  return text, ends


def _sortable(
  frame: pd.DataFrame,
  columns: Sequence[Column],
  looks: Mapping[str, styles.Style],
) -> str:
  """Rows that sort by the heading that is pressed."""
  heads = ''.join(
    f'<th scope="col" title="{display.for_html(c.meaning)}">'
    f'<button type="button">{display.for_html(c.heading)}</button></th>'
    for c in columns
  )
  rows = []
  for row in frame.to_dict('records'):
    style = looks.get(row['variant'])
    name = display.for_html(_name(row, looks))
    mark = f'{drawings.marker(style)} ' if style else ''
    cells = [f'<th scope="row" data-key="{name}">{mark}{name}</th>']
    for column in columns:
      text, ends = map(display.for_html, _shown(row, column))
      if ends:
        text += f' <span class="interval">{ends}</span>'
      cells.append(_cell(row[column.field], text))
    rows.append(f'<tr>{"".join(cells)}</tr>')
  body = '\n'.join(rows)
  return (
    '<div class="scroll" tabindex="0"><table class="summary"><thead><tr>'
    f'<th scope="col"><button type="button">Method</button></th>{heads}'
    f'</tr></thead><tbody>\n{body}\n</tbody></table></div>'
  )


def interactive(
  table: Table, looks: Mapping[str, styles.Style], note: str = ''
) -> str:
  """A table as HTML, with its title and what has to be said of it.

  Args:
    table: What is shown.
    looks: Styles by variant.
    note: What is said above the rows; may be empty.
  """
  note = f'<p class="allowed">{display.for_html(note)}</p>\n' if note else ''
  rows = _sortable(table.frame, table.columns, looks)
  return f'<h3>{display.for_html(table.title)}</h3>\n{note}{rows}'


def _lines(
  table: Table, looks: Mapping[str, styles.Style]
) -> Iterator[list[str]]:
  """Headings, then the texts of each row."""
  yield ['Method', *(c.heading for c in table.columns)]
  for row in table.frame.to_dict('records'):
    cells = [_name(row, looks)]
    for column in table.columns:
      text, ends = _shown(row, column)
      cells.append(f'{text} ({ends})' if ends else text)
    yield cells


def markdown(
  table: Table, looks: Mapping[str, styles.Style], note: str = ''
) -> str:
  """A table as Markdown, with its title and what has to be said of it.

  Args:
    table: What is shown.
    looks: Styles by variant.
    note: What is said above the rows; may be empty.
  """

  def line(cells: Sequence[str]) -> str:
    return f'| {" | ".join(map(display.for_markdown, cells))} |'

  head, *rows = _lines(table, looks)
  # Numbers stand under each other.
  rule = ['---', *['---:'] * len(table.columns)]
  parts = [
    f'**{table.title}**',
    note,
    '\n'.join(map(line, [head, rule, *rows])),
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


# What LaTeX lacks among the characters of a table.
_SYMBOLS = {
  styles.MINUS: '$-$',
  '∞': r'$\infty$',
  styles.DASH: '--',
  '✓': r'$\checkmark$',
  '✗': r'$\times$',
  '²': '$^2$',
  '≤': r'$\leq$',
  '\u00a0': '~',
}


def _latex(text: str) -> str:
  """A text as LaTeX has it."""
  # What is mathematics on both sides is one piece of it.
  return display.for_latex(text, _SYMBOLS).replace('$$', '')


def latex(
  table: Table, looks: Mapping[str, styles.Style], note: str = ''
) -> str:
  """A table as LaTeX, which needs booktabs and amssymb.

  Args:
    table: What is shown.
    looks: Styles by variant.
    note: What is said behind the title; may be empty.
  """
  head, *rows = _lines(table, looks)
  body = [' & '.join(map(_latex, cells)) + r' \\' for cells in (head, *rows)]
  caption = ' '.join(part for part in (f'{table.title}.', note) if part)
  return '\n'.join(
    [
      r'\begin{table}',
      r'\centering',
      rf'\caption{{{_latex(caption)}}}',
      rf'\begin{{tabular}}{{l{"r" * len(table.columns)}}}',
      r'\toprule',
      body[0],
      r'\midrule',
      *body[1:],
      r'\bottomrule',
      r'\end{tabular}',
      r'\end{table}',
      '',
    ]
  )
