"""Tasks by name: `TASKS['word_problems'].load(split='test', seed=0)`."""

from cascades.tasks import numerals, word_problems
from cascades.tasks.task import Example, Task

TASKS: dict[str, Task] = {
  task.name: task for task in (word_problems.TASK, numerals.TASK)
}

__all__ = ['TASKS', 'Example', 'Task']
