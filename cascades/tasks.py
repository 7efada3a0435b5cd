"""Says where the tasks are; the library knows none."""

raise ImportError(
  'cascades.tasks: the tasks are no part of the library; import'
  ' experiments.tasks from a checkout of the project.'
)
