"""Writes the generated parts of README.md and of the guides anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while a guide is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`, in the guide that it
belongs to: tables of what the code has (rooms, commands, methods, schedules,
fields, configs, models).
"""

import functools
import re
from collections.abc import Callable

from experiments import cli
from experiments.guides import ROOT, inventory

GUIDES = (
  'README.md',
  'cascades/README.md',
  'configs/README.md',
  'experiments/README.md',
  'experiments/results/README.md',
  'tests/README.md',
)

PARTS: dict[str, Callable[[], str]] = {
  'rooms_of_the_library': functools.partial(inventory.rooms, 'cascades'),
  'methods': inventory.methods_table,
  'schedules': inventory.schedules,
  'models': inventory.models,
  'configs': inventory.configs,
  'tasks': inventory.tasks,
  'fields': inventory.fields,
  'rooms_of_experiments': functools.partial(inventory.rooms, 'experiments'),
  'commands': inventory.commands,
}


def places(text: str) -> list[str]:
  """The names of the parts that a guide has places for, in their order."""
  return re.findall(r'^<!-- (\w+) -->$', text, re.M)


def render(text: str) -> str:
  """A guide with each of its generated parts made anew.

  Raises:
    ValueError: A place is for no part, or does not end.
  """
  for name in places(text):
    if name not in PARTS:
      raise ValueError(f'{name}: no such part; there are {", ".join(PARTS)}.')
    start, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
      raise ValueError(f'{name}: its place does not end; add {end}.')
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
