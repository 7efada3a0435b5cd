"""Finding tasks of lm-evaluation-harness, by name or in the user's YAML.

A sweep runs no Python that the user's YAML names (`!function`) and no metrics
of the hub, and renders templates in Jinja's sandbox.
"""

import pathlib
from collections.abc import Callable

import jinja2
import yaml
from jinja2 import sandbox
from lm_eval import utils
from lm_eval.api import registry, task
from lm_eval.tasks import TaskManager

from cascades import files
from experiments import cli
from experiments.tasks.harness_documents import check_members

# The parser of the harness, whose constructors are safe.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


def find_tasks(target: str) -> tuple[TaskManager, list[str]]:
  """Returns the harness's index, and names in it of a name, folder or file."""
  sealed = sandbox.SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True
  )
  sealed.filters = utils.env.filters
  utils.env, task.get_metric = sealed, _registered_metric
  path = pathlib.Path(target)
  is_file = path.suffix == '.yaml'
  folder = path.parent if is_file else path
  # The harness reads all files of a folder, and tasks may name each other.
  if files := sorted(folder.glob('**/*.yaml')) if path.exists() else []:
    _check_files([file.resolve() for file in files])
    manager = TaskManager(include_path=folder, include_defaults=False)
    entries = [x for x in manager.task_index.values() if x.yaml_path]
    names = [x.name for x in entries if x.yaml_path.samefile(path)]
    names = names if is_file else manager.all_subtasks
  else:
    manager = TaskManager()
    names = [target] if target in manager.task_index else []
  if not names:
    problem = 'is not known, or is declared twice; see `lm_eval ls tasks`.'
    raise ValueError(f'tasks: lm_eval:{target} {problem}')
  check_members(manager, names)
  return manager, names


def _registered_metric(name: str, is_of_hub: bool = False) -> Callable | None:
  """Returns a metric of the harness; those of the hub are code."""
  if is_of_hub or name not in registry.metric_registry:
    raise ValueError(f'{name} is a metric of the hub, which is not run')
  return registry.get_metric(name)


def _check_files(paths: list[pathlib.Path]) -> None:
  """Refuses code in files of the user's and in those that they include."""
  for path in paths:
    try:
      text = files.read_bytes(path, 'tasks', 'shorten it', 2**20)
      names = yaml.load(text, Loader=_LOADER).get('include') or ()
      names = [names] if isinstance(names, str) else map(str, names)
      included = [(path.parent / name).resolve() for name in names]
    # Constructors of dates and numbers raise errors of their own.
    except Exception as error:
      reason = cli.one_line(error).replace('"<byte string>", ', '')[:300]
      problem = f'{path} is damaged or names Python code ({reason})'
      raise ValueError(f'tasks: {problem}; correct it.') from None
    paths += [file for file in included if file not in paths]
