"""Finding tasks of lm-evaluation-harness, by name or in the user's YAML.

The harness runs Python that YAML names (`!function`), metrics of the hub, and
programs that models write. A sweep refuses all three in files of the user, and
renders templates in Jinja's sandbox.
"""

import pathlib
from typing import Any

import jinja2
import yaml
from jinja2 import sandbox
from lm_eval import utils
from lm_eval.api import metrics  # noqa: F401, registers them
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import TaskManager

from cascades import arguments
from cascades.untrusted import bounded

# The type of tasks whose answers are generated.
GENERATION = 'generate_until'
_LARGEST_FILE = 1 << 20
# The parser of the harness, whose constructors are safe.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_MEND = 'correct it as the documentation of lm-evaluation-harness describes'


def find_tasks(target: str) -> tuple[TaskManager, list[str]]:
  """Returns the harness's index, and the names in it that a target stands for.

  The target is the name of a task, a group or a tag, or a folder or file of
  YAML.
  """
  if not isinstance(utils.env, sandbox.SandboxedEnvironment):
    sealed = sandbox.SandboxedEnvironment(
      undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    sealed.filters = utils.env.filters
    utils.env = sealed
  path = pathlib.Path(target)
  is_file = path.suffix == '.yaml'
  files = [path] if is_file else sorted(path.glob('**/*.yaml'))
  if not files:
    manager, names = TaskManager(), [target]
    if target not in manager.task_index:
      raise ValueError(
        f'tasks: {arguments.quote(f"lm_eval:{target}")} is not known; give a'
        ' name that `lm_eval ls tasks` lists, a .yaml file, or a folder that'
        ' has one.'
      )
  else:
    _check_files(files)
    folder = path.parent if is_file else path
    manager = TaskManager(include_path=folder, include_defaults=False)
    names = manager.all_subtasks
    if is_file:
      entries = [x for x in manager.task_index.values() if x.yaml_path]
      names = [x.name for x in entries if x.yaml_path.samefile(path)]
    if not names:
      raise ValueError(
        f'tasks: {target} declares no task, or a task that another file of its'
        f' folder also declares; {_MEND}: write task: NAME once.'
      )
  _check_members(manager, names, is_own=bool(files))
  return manager, names


def without_generation(name: str, kind: str) -> str:
  """Returns the error for a task whose answers are not generated."""
  return (
    f'tasks: lm_eval:{name} has the output type {kind or "unknown"}, but a'
    f' sweep generates answers; choose a task of the type {GENERATION}.'
  )


def _refusal(place: str, problem: str) -> ValueError:
  return ValueError(
    f'tasks: {place} {problem}, which a sweep does not run; run the harness'
    ' itself: python -m cascades.contrib.lm_eval --model=cascades.'
  )


def _check_members(manager: Any, names: list[str], is_own: bool) -> None:
  """Refuses tasks that a sweep cannot take, before their data is loaded."""
  waiting, visited = list[Any](names), set()
  while waiting:
    member = waiting.pop()
    key = member if isinstance(member, str) else id(member)
    if key in visited:
      continue
    visited.add(key)
    entry = manager.task_index.get(key)
    if entry:
      waiting += [entry.cfg] if entry.cfg else sorted(entry.tags)
    if not isinstance(member, dict):
      continue
    task, group = member.get('task'), member.get('group')
    waiting += task if isinstance(task, list) else [task, group]
    name, kind = group or task, member.get('output_type', GENERATION)
    if kind != GENERATION:
      raise ValueError(without_generation(name, kind))
    if member.get('unsafe_code'):
      raise _refusal(f'lm_eval:{name}', 'has programs of models as answers')
    entries = member.get('metric_list')
    for metric in entries if isinstance(entries, list) else ():
      fields = metric if isinstance(metric, dict) else {}
      is_foreign = is_own and str(fields.get('metric')) not in metric_registry
      if is_foreign or fields.get('hf_evaluate'):
        raise _refusal(f'lm_eval:{name}', 'has a metric of the hub')


def _check_files(files: list[pathlib.Path]) -> None:
  """Refuses code in files of the user's and in those that they include."""
  paths = [file.resolve() for file in files]
  for path in paths:
    try:
      text = bounded.read_bytes(path, 'tasks', _MEND, _LARGEST_FILE)
    except FileNotFoundError:
      raise ValueError(f'tasks: {path} is missing; give a YAML file.') from None
    try:
      names = yaml.load(text, Loader=_LOADER).get('include') or ()
      names = [names] if isinstance(names, str) else map(str, names)
      included = [(path.parent / name).resolve() for name in names]
    # Constructors of dates, numbers and truth values raise errors of their own.
    except Exception as error:
      reason = str(error).replace('"<byte string>", ', '')
      reason = ' '.join(reason.split())[:300]
      if 'constructor for the tag' in reason:
        raise _refusal(str(path), f'names Python code ({reason})') from None
      raise ValueError(
        f'tasks: {path} is damaged ({reason}); {_MEND}.'
      ) from None
    paths += [file for file in included if file not in paths]
