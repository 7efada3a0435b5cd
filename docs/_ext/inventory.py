"""Tables of packages, commands, configs, methods, models and tasks.

Command: python -m docs._ext.inventory NAME...
Shows: the tables of these names.
"""

import ast
import functools
import importlib
import inspect
import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[2]


def _table(*rows: str) -> str:
  """Returns a table of rows with cells between bars; the first is the head."""
  head, *rest = rows
  columns = head.count('|') - 1
  return '\n'.join([head, f'|{"---|" * columns}', *rest])


def rooms(layer: str) -> str:
  """Returns a table of the parts of 'cascades' or 'experiments'."""
  package = importlib.import_module(layer)
  entries = re.findall(r'^  (\w+) +(\S.*)$', package.__doc__, re.M)
  return _table(
    '| part | content |',
    *(f'| `{layer}.{name}` | {content} |' for name, content in entries),
  )


def _documented(folder: str) -> Iterator[tuple[str, str, str]]:
  """Yields the modules of a folder that are commands."""
  for path in sorted((ROOT / folder).glob('*.py')):
    text = path.read_text(encoding='utf-8')
    docstring = ast.get_docstring(ast.parse(text)) or ''
    command = re.search(r'^Command: python -m ([\w.]+)', docstring, re.M)
    if command:
      first, _, _ = docstring.partition('\n\n')
      yield path.stem, command[1], ' '.join(first.split())


def commands() -> str:
  """Returns a table of the commands."""
  return _table(
    '| command | purpose |',
    *(
      f'| `python -m {command}` | {about} |'
      for _, command, about in _documented('experiments')
    ),
  )


def tasks() -> str:
  """Returns a table of the project's tasks and their metrics."""
  from experiments.tasks import METRICS
  from experiments.tasks.catalog import CATALOG

  names = [f'`{name}`' for name in METRICS.core()]
  rows = [
    f'| `file` | yours | `--metric`: {", ".join(names)}, `regex:PATTERN`,'
    ' `module:function`; none: speed only. | your own |'
  ]
  for task in CATALOG:
    metrics = [f'`{metric.name}`: {metric.help}' for metric in task.metrics]
    rows.append(
      f'| `{task.name}` | {task.shots} |'
      f' {" ".join(metrics) or "None: speed only."} |'
      f' {task.source.download if task.source else "generated"} |'
    )
  return _table('| task | worked examples | metrics | file |', *rows)


def configs() -> str:
  """Returns a table of the configs."""
  return _table(
    '| config | content | command |',
    *(
      f'| `{name}.py` | {about} | `{command}` |'
      for name, command, about in _documented('configs')
    ),
  )


def fields() -> str:
  """Returns a table of the fields of sweeps, a row per option."""
  from cascades.arguments import options_of
  from experiments.sweeps import fields

  def rows(options, table=''):
    for name, x in options.items():
      if isinstance(x.default, type):
        yield from rows(options_of(x.default), f'{table}{name}.')
      else:
        yield f'| `{table}{name}={x.default!r}` | {x.help} |'

  head = '| field and default | description |'
  return _table(head, *rows(fields.declared()))


def methods_table() -> str:
  """Returns a table of the registered methods."""
  from cascades import methods

  def row(method):
    equation = method.equation.replace('|', r'\|')
    ends = (
      '-' if end is None else f'{end:g}'
      for end in (method.strict, method.drafter_only)
    )
    return (
      f'| `{method.name}` | {equation} | {" | ".join(ends)} |'
      f' {method.reference} |'
    )

  return _table(
    '| method | equation | strict at | drafter alone at | reference |',
    *map(row, methods.METHODS.values()),
  )


def presets_table() -> str:
  """Returns a table of engines' switches, from their docstrings."""
  from cascades import presets

  def row(name, function):
    named = inspect.signature(function).parameters.values()
    values = ', '.join(f'{x.name}={x.default}' for x in [*named][:-1])
    engine, *law = map(str.strip, inspect.getdoc(function).split('\n', 1))
    law = ' '.join(' '.join(law).split())
    return f'| `{name}` | {engine} | `{values}` | {law} |'

  head = '| method | switch | values | law |'
  return _table(head, *itertools.starmap(row, presets.PRESETS.items()))


def models() -> str:
  """Returns a table of the scores of the bundled models, from their cards."""
  from cascades.models import checkpoints

  cards, tasks = {}, {}
  for name in checkpoints.BUNDLED:
    path = checkpoints.ASSETS / name / 'README.md'
    card = path.read_text(encoding='utf-8')
    scores = dict(
      re.findall(r'^\| (\w+) \| exact_match \| (\S+) \|$', card, re.M)
    )
    (config,) = re.findall(r'--config=(\S+?)`', card)
    (parameters,) = re.findall(r'([\d,]+) parameters', card)
    cards[name] = config, parameters, scores
    tasks |= scores
  rows = []
  for name, (config, parameters, scores) in cards.items():
    cells = ' | '.join(scores.get(task, '-') for task in tasks)
    rows.append(f'| `{name}` | `{config}` | {parameters} | {cells} |')
  return _table(f'| | trained by | parameters | {" | ".join(tasks)} |', *rows)


# Tables by the names that pages of docs/ give them.
TABLES: dict[str, Callable[[], str]] = {
  'library': functools.partial(rooms, 'cascades'),
  'experiments': functools.partial(rooms, 'experiments'),
  'methods': methods_table,
  'presets': presets_table,
  'models': models,
  'configs': configs,
  'tasks': tasks,
  'fields': fields,
  'commands': commands,
}


if __name__ == '__main__':
  for name in sys.argv[1:]:
    print(TABLES[name]())
