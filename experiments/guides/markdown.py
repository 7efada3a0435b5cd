"""How the generated parts of a guide are written."""


def number(value: float | None) -> str:
  """Up to six digits, none of them a trailing 0; a dash where there is none."""
  return '-' if value is None else f'{value:g}'


def table(*rows: str) -> str:
  """A table of rows, the first of them its head; cells stand between bars."""
  head, *rest = rows
  columns = head.count('|') - 1
  return '\n'.join([head, f'|{"---|" * columns}', *rest])
