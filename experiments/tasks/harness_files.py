"""Finding tasks of lm-evaluation-harness, by name or in the user's YAML.

YAML of the harness can name Python (`!function`), and metrics that it downloads
and runs. Before the harness reads a file of the user's, the file is read here
without either, and refused unless running code is allowed. Templates are always
rendered in Jinja's sandbox.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
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
_ALLOW = 'allow it with --config.task.allow_code_execution=True'
_MEND = 'correct it as the documentation of lm-evaluation-harness describes'
# Loads nodes, which makes no object of a tag.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


@dataclasses.dataclass(frozen=True)
class Catalog:
  """Tasks that a name of the user's stands for.

  Attributes:
    manager: The harness's index of tasks.
    names: Names of tasks, groups and tags in it; or paths of files.
  """

  manager: Any
  names: tuple[str, ...]

  def check_members(self, allow_code_execution: bool) -> None:
    """Refuses tasks that a sweep cannot take, before their data is loaded."""
    for name in self.names:
      for entry in self._entries(name):
        fields = entry.cfg or {}
        kind = fields.get('output_type', GENERATION)
        if kind != GENERATION:
          raise ValueError(without_generation(entry.name, kind))
        if fields.get('unsafe_code'):
          raise ValueError(
            f'tasks: lm_eval:{entry.name} runs programs that models write, and'
            ' the harness does not confine them; use the task mbpp, whose'
            ' programs run in a sandbox.'
          )
        metrics_ = fields.get('metric_list') or ()
        if not allow_code_execution and any(
          metric.get('hf_evaluate') for metric in metrics_
        ):
          raise ValueError(_foreign_metric(f'lm_eval:{entry.name}'))

  def load(self) -> dict[str, Any]:
    """Returns the harness's tasks by name, their data loaded."""
    return self.manager.load(list(self.names))['tasks']

  def _entries(self, name: str) -> Iterator[Any]:
    """Yields the entries of the tasks of a name, members of groups included."""
    entry = self.manager.task_index.get(name)
    if entry is None:
      return
    members = (entry.cfg or {}).get('task')
    if entry.tags and entry.cfg is None:
      members = sorted(entry.tags)
    if not isinstance(members, list):
      yield entry
      return
    for member in members:
      if isinstance(member, dict):
        member = member.get('task') or member.get('group')
      if isinstance(member, str) and member != name:
        yield from self._entries(member)


def without_generation(name: str, kind: str) -> str:
  """Returns the error for a task whose answers are not generated."""
  return (
    f'tasks: lm_eval:{name} has the output type {kind or "unknown"}, but a'
    f' sweep generates answers; choose a task of the type {GENERATION}.'
  )


def _foreign_metric(place: str) -> str:
  """Returns the error for a metric whose code comes from the hub."""
  return (
    f'tasks: {place} has a metric that the harness lacks, so code from the hub'
    f' would be run; if you trust this code, {_ALLOW}.'
  )


def open_catalog(target: str, allow_code_execution: bool) -> Catalog:
  """Finds the tasks of a name, or of a folder or file of YAML."""
  _seal_templates()
  path = pathlib.Path(target)
  is_file = path.suffix == '.yaml'
  if not is_file and not (path.is_dir() and any(path.glob('**/*.yaml'))):
    if '/' in target or path.exists():
      raise ValueError(
        f'tasks: {arguments.quote(target)} is neither a .yaml file nor a folder'
        ' that has one; give either.'
      )
    manager = TaskManager()
    if target not in manager.task_index:
      raise ValueError(_unknown(target, manager.all_tasks))
    return Catalog(manager, (target,))
  folder = path.parent if is_file else path
  files = [path] if is_file else sorted(folder.glob('**/*.yaml'))
  for file in files:
    _check_file(file, allow_code_execution, set())
  manager = TaskManager(include_path=folder, include_defaults=False)
  if not is_file:
    names = tuple(manager.all_subtasks)
  else:
    names = tuple(
      entry.name
      for entry in manager.task_index.values()
      if entry.yaml_path and entry.yaml_path.samefile(path)
    )
  if not names:
    raise ValueError(
      f'tasks: {target} declares no task, or a task that another file of its'
      f' folder also declares; {_MEND}: write task: NAME once.'
    )
  return Catalog(manager, names)


def _unknown(name: str, names: list[str]) -> str:
  """Returns the error for an unknown task, with the nearest names."""
  near = difflib.get_close_matches(name, names, 3, 0.5)
  guess = ' or '.join(f'lm_eval:{x}' for x in near)
  return (
    f'tasks: {arguments.quote(f"lm_eval:{name}")} is not known;'
    f' {f"did you mean {guess}?" if guess else ""} `lm_eval ls tasks` lists'
    ' all tasks, and the path of a folder selects your own.'
  ).replace('  ', ' ')


def _seal_templates() -> None:
  """Makes the harness render its templates in Jinja's sandbox."""
  if not isinstance(utils.env, sandbox.SandboxedEnvironment):
    sealed = sandbox.SandboxedEnvironment(
      loader=jinja2.BaseLoader(),
      undefined=jinja2.StrictUndefined,
      keep_trailing_newline=True,
    )
    sealed.filters.update(utils.env.filters)
    utils.env = sealed


def _check_file(
  path: pathlib.Path, allows_code: bool, visited: set[pathlib.Path]
) -> None:
  """Checks a file of the user's and those that it includes."""
  path = path.resolve()
  if path in visited:
    return
  visited.add(path)
  try:
    text = bounded.read_bytes(path, 'tasks', _MEND, _LARGEST_FILE)
    root = yaml.compose(text, Loader=_LOADER)
  except FileNotFoundError:
    raise ValueError(f'tasks: {path} is missing; give a YAML file.') from None
  except (yaml.YAMLError, RecursionError, UnicodeError) as error:
    reason = ' '.join(str(error).replace('"<byte string>", ', '').split())
    raise ValueError(
      f'tasks: {path} is damaged ({reason[:300]}); {_MEND}.'
    ) from None
  if not allows_code:
    _refuse_code(path, list(_nodes(root)))
  for key, value in _pairs(_nodes(root)):
    if key.value == 'include':
      names = [value] if isinstance(value.value, str) else value.value
      for name in names:
        _check_file(path.parent / str(name.value), allows_code, visited)


def _nodes(root: Any) -> Iterator[Any]:
  """Yields the nodes of a document of YAML, each once."""
  visited, waiting = set(), [root] if root is not None else []
  while waiting:
    node = waiting.pop()
    if id(node) in visited:
      continue
    visited.add(id(node))
    yield node
    if isinstance(node, yaml.MappingNode):
      waiting += [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
      waiting += node.value


def _pairs(nodes: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
  """Yields the keys and values of all mappings among nodes."""
  for node in nodes:
    if isinstance(node, yaml.MappingNode):
      yield from node.value


def _refuse_code(path: pathlib.Path, nodes: Sequence[Any]) -> None:
  """Refuses a file that makes the harness run Python."""
  for node in nodes:
    if not node.tag.startswith('tag:yaml.org,2002:'):
      raise ValueError(
        f'tasks: {path} runs Python code ({arguments.quote(node.tag)} in line'
        f' {node.start_mark.line + 1}); if you trust this code, {_ALLOW}.'
      )
  for key, value in _pairs(nodes):
    is_foreign = key.value == 'metric' and (
      not isinstance(value.value, str) or value.value not in metric_registry
    )
    is_asked = (
      key.value == 'hf_evaluate' and str(value.value).lower() != 'false'
    )
    if is_foreign or is_asked:
      line = key.start_mark.line + 1
      raise ValueError(_foreign_metric(f'{path}, line {line},'))
