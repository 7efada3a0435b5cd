"""What the code has: rooms, commands, configs, methods, models."""

import ast
import importlib
import pathlib
import re
from collections.abc import Iterator

from experiments.guides import ROOT


def _table(*rows: str) -> str:
  """A table of rows, the first of them its head; cells stand between bars."""
  head, *rest = rows
  columns = head.count('|') - 1
  return '\n'.join([head, f'|{"---|" * columns}', *rest])


def rooms(layer: str) -> str:
  """A row per room of a layer: its line in the docstring of the package."""
  package = importlib.import_module(layer)
  says = dict(re.findall(r'^  (\w+) +(\S.*)$', package.__doc__, re.M))
  folder = pathlib.Path(package.__file__).parent
  return _table(
    '| room | what it is for |',
    *(
      f'| [`{name}`]({name if (folder / name).is_dir() else f"{name}.py"}) |'
      f' {says[name]} |'
      for name in package.ROOMS
    ),
  )


def _documented(folder: str) -> Iterator[tuple[str, str, str]]:
  """Modules of a folder that tell their command.

  Yields:
    The module's name, the command's without its flags, and the first sentence
    of its docstring.
  """
  for path in sorted((ROOT / folder).glob('*.py')):
    says = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
    command = re.search(r'^Command: python -m ([\w.]+)', says, re.M)
    if command:
      first, _, _ = says.partition('\n\n')
      yield path.stem, command[1], ' '.join(first.split())


def schedules() -> str:
  """A row per kind of schedule."""
  from cascades.schedules import SCHEDULES

  # Plug-ins that were imported already come first among the names.
  names = sorted(SCHEDULES, key=lambda name: (name != 'constant', name))
  kinds = [SCHEDULES[name] for name in names]
  return _table(
    '| `schedule` | what it does |',
    *(f'| `{kind.pattern}` | {kind.says} |' for kind in kinds),
  )


def commands() -> str:
  """A row per command of the package."""
  return _table(
    '| command | what it does |',
    *(
      f'| [`python -m {command}`]({name}.py) | {about} |'
      for name, command, about in _documented('experiments')
    ),
  )


def tasks() -> str:
  """Returns a table of the project's tasks and their metrics."""
  from experiments.tasks import TASKS

  rows = []
  for task in (TASKS[name] for name in TASKS if TASKS.is_builtin(name)):
    metrics = [f'`{metric.name}`: {metric.help}' for metric in task.metrics]
    rows.append(
      f'| `{task.name}` | {task.shots} |'
      f' {" ".join(metrics) or "None: speed only."} |'
      f' {task.source.download if task.source else "generated"} |'
    )
  return _table('| task | worked examples | metrics | file |', *rows)


def configs() -> str:
  """A row per config."""
  return _table(
    '| config | what it asks | started by |',
    *(
      f'| [`{name}.py`]({name}.py) | {about} | `{command}` |'
      for name, command, about in _documented('configs')
    ),
  )


def _fields(table: str) -> Iterator[tuple[str, str]]:
  """Fields of a table of configs/common.py, with the comments above them.

  Yields:
    Fields that share a comment, with their usual values; and the comment.
  """
  text = (ROOT / 'configs/common.py').read_text(encoding='utf-8')
  (made,) = (
    node.value
    for node in ast.parse(text).body
    if isinstance(node, ast.Assign) and node.targets[0].id == table
  )
  lines = [line.strip() for line in text.splitlines()]
  shared, about, end = [], '', made.lineno
  for value in made.keywords:
    above = lines[end : value.lineno - 1]
    comment = ' '.join(line.removeprefix('#').strip() for line in above)
    if comment:
      if shared:
        yield ', '.join(shared), about
      shared, about = [], comment
    shared.append(f'`{value.arg}={ast.unparse(value.value)}`')
    end = value.end_lineno
  yield ', '.join(shared), about


def fields() -> str:
  """A row per field that sweeps share, or for several of one comment."""
  return _table(
    '| field, and its usual value | what it says |',
    *(
      f'| {names} | {about} |'
      for table in ('_SWEEP', '_OPTIONAL')
      for names, about in _fields(table)
    ),
  )


def methods_table() -> str:
  """A row per registered method."""
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


def models() -> str:
  """What the bundled models score, from the cards beside their weights."""
  from cascades.models import checkpoints

  found, tasks = {}, {}
  for name in checkpoints.BUNDLED:
    path = checkpoints.ASSETS / name / 'README.md'
    card = path.read_text(encoding='utf-8')
    scores = dict(
      re.findall(r'^\| (\w+) \| exact_match \| (\S+) \|$', card, re.M)
    )
    (config,) = re.findall(r'--config=(\S+?)`', card)
    (parameters,) = re.findall(r'([\d,]+) parameters', card)
    found[name] = config, parameters, scores
    tasks |= scores
  rows = []
  for name, (config, parameters, scores) in found.items():
    cells = ' | '.join(scores.get(task, '-') for task in tasks)
    rows.append(f'| `{name}` | `{config}` | {parameters} | {cells} |')
  return _table(f'| | trained by | parameters | {" | ".join(tasks)} |', *rows)
