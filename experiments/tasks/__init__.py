"""Tasks by name: `TASKS['word_problems'].load(split='test', seed=0)`.

`TASKS.register` and `METRICS.register` add others.
"""

from cascades import arguments
from cascades.arguments import Registry
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.catalog import CATALOG
from experiments.tasks.task import (
  FILE,
  Example,
  FileTask,
  Reference,
  Task,
  choosing,
  file_task,
  half_of,
)

TASKS: Registry[Task] = Registry('task', Task)
for _task in (*CATALOG, FileTask(name=FILE, metrics=())):
  TASKS.register(_task.name, _task, builtin=True)


def quality_metric(task: str) -> Metric | None:
  """Returns the metric of a record's quality.

  Names no module to import, so that records of others can be read.
  """
  kind, _, name = task.partition(':')
  if kind == FILE:
    return METRICS.get(name, None)
  entry = TASKS.get(task, None)
  return entry.metrics[0] if entry and entry.metrics else None


def harness_tasks(name: str) -> dict[str, Task]:
  """Returns the tasks of a name such as 'lm_eval:gsm8k', see `harness`."""
  try:
    from experiments.tasks import harness
  except ModuleNotFoundError as error:
    raise ValueError(
      arguments.missing('tasks', 'lm-evaluation-harness', 'eval')
    ) from error
  return harness.load_tasks(name)
