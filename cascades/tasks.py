"""Refuses imports of the tasks, which moved to `experiments.tasks`."""

raise ImportError(
  'cascades.tasks: the tasks are not part of the library; import'
  ' experiments.tasks from a checkout of the project.'
)
