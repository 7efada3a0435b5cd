"""Writes the generated parts of README.md anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while README.md is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`.
"""

import pathlib
import re

from experiments import cli

_PATH = pathlib.Path(__file__).parent.parent / 'README.md'


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:g}'


def methods_table() -> str:
  """A row per registered method."""
  from cascades import methods

  lines = [
    '| method | equation | strict at | drafter alone at | reference |',
    '|---|---|---|---|---|',
  ]
  for method in methods.METHODS.values():
    equation = method.equation.replace('|', r'\|')
    lines.append(
      f'| `{method.name}` | {equation} | {_number(method.strict)}'
      f' | {_number(method.drafter_only)} | {method.reference} |'
    )
  return '\n'.join(lines)


PARTS = {'methods': methods_table}


def render(text: str) -> str:
  """README.md with every generated part made anew.

  Raises:
    ValueError: A part has no place in it.
  """
  for name, make in PARTS.items():
    start, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    pattern = re.compile(f'{re.escape(start)}.*?{re.escape(end)}', re.DOTALL)
    if not pattern.search(text):
      raise ValueError(f'README.md: no place for {name}; add {start} {end}.')
    part = f'{start}\n\n{make()}\n\n{end}'
    text = pattern.sub(lambda _, part=part: part, text)
  return text


def main() -> None:
  text = _PATH.read_text(encoding='utf-8')
  _PATH.write_text(render(text), encoding='utf-8')


if __name__ == '__main__':
  cli.run(main)
