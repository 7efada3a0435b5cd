"""The plan of a sweep: its tasks, its workdir and the points to decode.

A point, the unit of work, is a curve on some examples of a task. Its name is a
hash of everything that can change its records, so a file of that name is never
made again.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cascades import drafters
from cascades.methods import is_builtin
from cascades.verification_config import VERIFICATIONS
from experiments import records
from experiments.records import results_version
from experiments.sweeps.curve_plan import CURVE_FIELDS, Curve
from experiments.sweeps.fields import SweepConfig
from experiments.tasks import FILE, TASKS, Task, file_task, harness_tasks

# Fields that may be added to a finished sweep.
_ADDED = ('wandb', 'decision')
# Fields that choose examples or the way a sweep is run. They do not change the
# records of a point, which hashes its own examples; the batch size is among the
# facts where it may.
_WITHOUT_EFFECT = (
  *('tasks', 'task', 'file', 'num_examples', 'shard_size', 'batch_size', 'ray'),
  *('clock', *_ADDED),
)
# Fields of `file` that name files: they may move and may hold secrets, and the
# hashes of the files are kept.
_PATHS = ('path', 'examples')


def default_workdir(config: str | pathlib.Path, data: str = '') -> pathlib.Path:
  """Returns the folder for the results of a config.

  It is `runs/quickstart` for configs/quickstart.py. The words of an argument
  are subfolders: `runs/mine/2b/fast` for mine.py:2b,fast; so is a file of data.
  """
  path, _, argument = str(config).partition(':')
  file = data.partition('?')[0].rpartition('/')[2]
  file = re.sub(r'(\.(jsonl?|csv|parquet|gz))+$', '', file)
  # Neither '/data' nor '..' leads out of the folder.
  words = [pathlib.Path(path).stem, *re.split('[/,]', argument), file]
  return pathlib.Path('runs', *(x for x in words if x.strip('.')))


def run_settings(
  config: SweepConfig, curves: Sequence[Curve], data: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the settings that a workdir keeps, which all its results share."""
  left_out = (*CURVE_FIELDS, *_ADDED)
  settings = {k: x for k, x in config.values.items() if k not in left_out}
  if file := settings.get('file'):
    settings['file'] = {k: x for k, x in file.items() if k not in _PATHS}
  # The name and the seed determine the examples of a bundled task.
  data = {name: of_task for name, of_task in data.items() if of_task}
  settings |= {'data': data} if data else {}
  settings['curves'] = [curve.settings for curve in curves]
  if drafters.kind_of(config.drafter).depends_on_block:
    # For readers of the results who lack the module of the drafter.
    settings['block_by_block'] = True
  return records.plain(settings)


def configured_tasks(config: Any) -> dict[str, Task]:
  """Returns the tasks of a sweep by name, with the config's changes."""
  config = SweepConfig.convert(config)
  if not config.tasks:
    raise ValueError(
      'tasks: no task is given; give one or more with --config.tasks, such as'
      f' {next(iter(TASKS))}.'
    )
  tasks: dict[str, Task] = {}
  for name in config.tasks:
    if name.startswith('lm_eval:'):
      tasks |= harness_tasks(name)
    elif name == FILE:
      task = file_task(config.values)
      tasks[task.name] = task
    elif name in TASKS:
      tasks[name] = TASKS[name]
    else:
      raise ValueError(TASKS.unknown(name, 'tasks'))
  if tokens := (config.values.get('task') or {}).get('max_new_tokens'):
    changes = dict(max_new_tokens=tokens)
    tasks = {k: dataclasses.replace(x, **changes) for k, x in tasks.items()}
  return tasks


def load_examples(config: Any, task: Task) -> tuple[list, dict[str, Any]]:
  """Loads the examples of a task, with the provenance of its data."""
  config = SweepConfig.convert(config)
  table = config.values.get('task') or {}
  split = {'split': config.split} if config.split else {}
  examples, data = task.read(
    **split,
    seed=config.seed,
    num_examples=config.num_examples,
    path=table.get('path') or None,
    shots=table.get('shots'),
  )
  if task.quality_score:
    # Tasks of the harness score in [0, 1].
    metrics: Sequence[Any] = task.metrics
    scale = metrics[0].scale if metrics else 1.0
    data |= {'metric': task.quality_score, 'scale': scale}
  return examples, data


@dataclasses.dataclass(frozen=True)
class Point:
  """A curve on some examples of a task."""

  task: str
  curve: Curve
  first: int
  last: int
  identity: str

  @property
  def num_answers(self) -> int:
    """Number of answers: examples times leniences."""
    return (self.last - self.first) * max(1, len(self.curve.leniences))

  @property
  def name(self) -> str:
    """Name of its files: task, curve, first example and hash."""
    name = re.sub('[ /]', '-', f'{self.task} {self.curve.points_name}')
    return f'{name}-{self.first}-{self.identity[:16]}'


def plan_points(
  config: Mapping[str, Any],
  curves: Sequence[Curve],
  tasks: Mapping[str, Task],
  examples: Mapping[str, Sequence],
  facts: Mapping[str, Any],
) -> list[Point]:
  """Returns the points of a sweep, task by task and curve by curve."""
  run_fields = {
    name: value
    for name, value in records.plain(config).items()
    if name not in (*CURVE_FIELDS, *_WITHOUT_EFFECT)
  }
  facts = dict(facts)
  if batch_size := facts.pop('batch_size', None):
    run_fields['batch_size'] = batch_size
  size, planned = config.get('shard_size') or 256, []
  for task, curve in itertools.product(tasks, curves):
    of_task = tasks[task]
    hashed = {
      'run': run_fields,
      'facts': facts,
      'curve': records.plain(curve.fields),
      'task': [task, of_task.max_new_tokens, list(of_task.stop_strings)],
    }
    if outside := _outside(curve, config.get('drafter', ''), of_task):
      hashed['outside'] = outside
    selected = examples[task][: curve.num_examples]
    for first in range(0, len(selected), size):
      shard = selected[first : first + size]
      hashed['examples'] = records.hash_examples(shard)
      identity = records.digest(hashed)
      planned.append(
        Point(task, curve, first, last=first + len(shard), identity=identity)
      )
  return planned


def _outside(curve: Curve, drafter: str, task: Task) -> list[str]:
  """Names the code from outside the project that a point runs."""
  used: list[Any] = []
  if not is_builtin(curve.config.method):
    used.append(curve.config.method)
  if not TASKS.is_builtin(task.name):
    used += task.external_parts()
  kind = curve.config.verification.partition(':')[0]
  if not VERIFICATIONS.is_builtin(kind):
    used.append(VERIFICATIONS[kind].decide)
  kind = drafter.partition(':')[0]
  if kind in drafters.DRAFTERS and not drafters.DRAFTERS.is_builtin(kind):
    used.append(drafters.DRAFTERS[kind])
  return results_version.outside(*used)
