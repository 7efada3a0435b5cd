"""Regenerates the tables of README.md and of the guides from the code.

Command: python -m experiments.readme
Shows: nothing. A test fails while a guide differs from the generated text.

A generated part is between `<!-- name -->` and `<!-- /name -->`: a table of
packages, commands, methods, schedules, fields, configs, models or tasks.
"""

import functools
import re
from collections.abc import Callable

from experiments import cli
from experiments.guides import ROOT, inventory

GUIDES = (
  'README.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'cascades/README.md',
  'configs/README.md',
  'experiments/README.md',
  'experiments/results/README.md',
  'tests/README.md',
)

PARTS: dict[str, Callable[[], str]] = {
  'rooms_of_the_library': functools.partial(inventory.rooms, 'cascades'),
  **inventory.TABLES,
  'rooms_of_experiments': functools.partial(inventory.rooms, 'experiments'),
}


def part_names(text: str) -> list[str]:
  """Returns the names of the generated parts of a guide, in their order."""
  return re.findall(r'^<!-- (\w+) -->$', text, re.M)


def render(text: str) -> str:
  """Returns a guide with its generated parts regenerated.

  Raises:
    ValueError: A part is unknown, or its end is missing.
  """
  for name in part_names(text):
    if name not in PARTS:
      raise ValueError(
        f'{name}: must be a generated part; the parts are {", ".join(PARTS)}.'
      )
    start, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    before, _, rest = text.partition(start)
    _, closing, after = rest.partition(end)
    if not closing:
      raise ValueError(f'{name}: the end of the part is missing; add {end}.')
    text = f'{before}{start}\n\n{PARTS[name]()}\n\n{end}{after}'
  return text


def main() -> None:
  """Runs the command."""
  for guide in GUIDES:
    path = ROOT / guide
    text = path.read_text(encoding='utf-8')
    path.write_text(render(text), encoding='utf-8')


if __name__ == '__main__':
  cli.run(main)
