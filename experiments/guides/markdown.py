"""How the generated parts of a guide are written."""

import textwrap
from collections.abc import Sequence


def number(value: float | None) -> str:
  """Up to six digits, none of them a trailing 0; a dash where there is none."""
  return '-' if value is None else f'{value:g}'


def filled(text: str) -> str:
  """In lines of 80, as all of a guide."""
  return textwrap.fill(
    text, width=80, break_long_words=False, break_on_hyphens=False
  )


def table(*rows: str) -> str:
  """A table of rows, the first of them its head; cells stand between bars."""
  head, *rest = rows
  columns = head.count('|') - 1
  return '\n'.join([head, f'|{"---|" * columns}', *rest])


def cells(rows: Sequence[Sequence[str]]) -> str:
  """A table of cells, the first row being its head."""
  return table(*(f'| {" | ".join(row)} |' for row in rows))
