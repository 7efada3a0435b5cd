"""Tasks by name: `TASKS['word_problems'].load(split='test', seed=0)`."""

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
from experiments.tasks.task import Example, Reference, Task

TASKS: dict[str, Task] = {
  task.name: task
  for task in (
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
}
# Those whose problems the project makes up; its own models learn from them.
GENERATED = tuple(name for name, task in TASKS.items() if task.problems)

# What the library registers; others come from outside of it.
BUILTIN = dict(TASKS)

__all__ = ['BUILTIN', 'GENERATED', 'TASKS', 'Example', 'Reference', 'Task']
