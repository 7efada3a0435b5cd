"""Tasks by name: `TASKS['word_problems'].load(split='test', seed=0)`.

A package adds a task as an entry point of the group `cascades.tasks`, and a
metric as one of the group `cascades.metrics`.
"""

from cascades.registries import Registry
from experiments.tasks import (
  gsm8k,
  mbpp,
  numerals,
  open_domain,
  roman,
  spec_bench,
  squad,
  summaries,
  translation,
  word_problems,
)
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.task import Example, Reference, Task

_BUILTIN: tuple[Task, ...] = (
  word_problems.TASK,
  numerals.TASK,
  roman.TASK,
  gsm8k.TASK,
  mbpp.TASK,
  squad.TASK,
  *open_domain.TASKS,
  *summaries.TASKS,
  *translation.TASKS,
  spec_bench.TASK,
)
TASKS: Registry[Task] = Registry('task', Task)
for _task in _BUILTIN:
  TASKS.register(_task.name, _task, builtin=True)
# Tasks whose problems are generated; the bundled models are trained on them.
GENERATED = tuple(task.name for task in _BUILTIN if task.problems)

__all__ = [
  'GENERATED',
  'METRICS',
  'TASKS',
  'Example',
  'Metric',
  'Reference',
  'Task',
]
