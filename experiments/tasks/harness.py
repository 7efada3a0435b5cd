"""Tasks of lm-evaluation-harness as tasks of a sweep.

`lm_eval:gsm8k` names a task that the harness comes with, `lm_eval:my/folder`
and `lm_eval:my/task.yaml` name tasks of the user; a group or a tag stands for
its members. Prompts, worked examples and their seed, stop texts, filters and
metrics are the harness's. Of several filters the first counts, or the one after
an `@`: `lm_eval:gsm8k@flexible-extract`. Method, temperature and chat template
are those of the sweep.

The quality of an answer is a number in [0, 1]: the first metric of the task of
which the harness takes the mean, and of which higher values are better.

A sweep runs no Python that the user's YAML names (`!function`) and no metrics
of the hub, and renders templates in Jinja's sandbox.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import io
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jinja2
import numpy as np
import yaml
from jinja2 import sandbox
from lm_eval import utils
from lm_eval.api import instance, metrics, registry, task
from lm_eval.tasks import TaskManager

from cascades import arguments, files
from cascades.contrib.lm_eval import Generation
from experiments.tasks import answer_metrics
from experiments.tasks.task import HALVES, Example, Task, half_of

# What the names of these tasks begin with.
PREFIX = 'lm_eval:'
# The parser of the harness, whose constructors are safe.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
# The type of tasks whose answers are generated.
_GENERATION = 'generate_until'
# Sums of shares are a little more than 1.
_TOLERANCE = 1e-6
# The harness's own seed of worked examples.
_FEWSHOT_SEED = 1234
# Fields of a task that do not decide a score: ids hold hashes of documents.
_WITHOUT_EFFECT = (
  'dataset_path dataset_name dataset_kwargs metadata tag task_alias'
).split()


_one_sentence = functools.partial(
  answer_metrics.external_code, advice='correct the YAML or its data'
)


def load_tasks(spec: str) -> dict[str, 'HarnessTask']:
  """Returns the tasks of a name, by their names in a sweep."""
  target, filter_name = spec.removeprefix(PREFIX), ''
  if '@' in target and not pathlib.Path(target).exists():
    target, _, filter_name = target.rpartition('@')
  manager, names = _find_tasks(target)
  with _one_sentence(f'tasks: {spec} cannot be loaded'):
    loaded = manager.load(names)['tasks']
  suffix = f'@{filter_name}' if filter_name else ''
  tasks: dict[str, HarnessTask] = {}
  for own_name, inner in loaded.items():
    # A name that a file can have.
    name = PREFIX + re.sub(r'[^\w.@+:-]', '-', own_name + suffix)[:120]
    if name in tasks:
      raise ValueError(f'tasks: two tasks of {spec} share a name; rename one.')
    tasks[name] = _make_task(inner, name, filter_name)
  return tasks


def _find_tasks(target: str) -> tuple[TaskManager, list[str]]:
  """Returns the harness's index, and names in it of a name, folder or file."""
  sealed = sandbox.SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True
  )
  sealed.filters = utils.env.filters
  utils.env, task.get_metric = sealed, _registered_metric
  path = pathlib.Path(target)
  is_file = path.suffix == '.yaml' and path.is_file()
  # The harness reads all files of a folder, and tasks may name each other. A
  # folder without YAML may have the data of a task of its name.
  folder = path.parent if is_file else path
  if sources := sorted(folder.rglob('*.yaml')):
    _check_files([file.resolve() for file in sources])
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
  members: list[Any] = [*names]
  for member in members:
    # Of groups, tags and tasks, before the code of a task is imported.
    entry = manager.task_index.get(member) if isinstance(member, str) else None
    fields = (entry and entry.cfg) or member
    inner = sorted(entry.tags) if entry else []
    if isinstance(fields, dict):
      inner = fields.get('task')
      if fields.get('unsafe_code'):
        raise ValueError(
          f'tasks: {inner} has programs of models as answers, which a sweep'
          ' does not run; run the harness itself: python -m'
          ' cascades.contrib.lm_eval --model=cascades.'
        )
      inner = inner if isinstance(inner, list) else [inner]
      inner = [*inner, fields.get('group')]
    members += [x for x in inner if x not in members]
  return manager, names


def _registered_metric(name: str, is_of_hub: bool = False) -> Callable | None:
  """Returns a metric of the harness; those of the hub are code."""
  if is_of_hub or name not in registry.metric_registry:
    raise ValueError(f'{name} is a metric of the hub, which is not run')
  return registry.get_metric(name)


def _check_files(paths: list[pathlib.Path]) -> None:
  """Refuses code in files of the user's and in those that they include."""
  for path in paths:
    with _one_sentence(f'tasks: {path} is damaged or names Python code'):
      text = files.read_bytes(path, 'tasks', 'shorten it', 2**20)
      names = yaml.load(text, Loader=_LOADER).get('include') or ()
      names = [names] if isinstance(names, str) else map(str, names)
      included = [(path.parent / name).resolve() for name in names]
    paths += [file for file in included if file not in paths]


def _make_task(inner: Any, name: str, filter_name: str) -> 'HarnessTask':
  """Returns the task of a sweep for a task of the harness."""
  filters = {ensemble.name: ensemble for ensemble in inner._filters}
  filter_name = filter_name or next(iter(filters))
  if filter_name not in filters:
    raise ValueError(
      f'tasks: {name} has no filter {arguments.quote(filter_name)}; choose'
      f' one of {", ".join(filters)}.'
    )
  task = HarnessTask(
    name=name,
    metrics=(),
    max_new_tokens=0,
    shots=inner.config.num_fewshot,
    inner=inner,
    docs=inner.eval_docs,
    answer_filter=filters[filter_name],
  )
  generation = Generation.from_task(task.check_kind())
  task = dataclasses.replace(
    task,
    max_new_tokens=generation.max_new_tokens,
    stop_strings=generation.until,
    metric=task.choose_metric(),
  )
  return dataclasses.replace(task, identity=task.hash())


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarnessTask(Task):
  """A task of the harness, with its prompts and scores."""

  # None if the author declares no number of them.
  shots: int | None
  inner: Any
  docs: Any
  answer_filter: Any
  metric: str = ''
  identity: str = ''

  @property
  def splits(self) -> tuple[str, ...]:
    """All documents that the harness evaluates, or half of them."""
    return ('test', *HALVES)

  def read(self, split='test', seed=0, num_examples=500, path=None, shots=None):
    """Reads the documents of a split, in the harness's order."""
    del seed
    self.check_split(split)
    if path:
      raise ValueError(
        f'task.path: cannot be combined with {self.name}; name data files by'
        ' dataset_kwargs in your own YAML.'
      )
    # As with --num_fewshot, a task that declares none keeps to it.
    count = self.shots if shots is None or self.shots == 0 else shots
    if shots is not None and shots != (self.shots or 0):
      print(
        f'task.shots={shots}: prompts of {self.name} have {count} worked'
        f' examples; the task declares {self.shots or 0}, which None uses.',
        file=sys.stderr,
      )
    is_half = split in HALVES
    examples = []
    for x in self._requests(None if is_half else num_examples, count):
      text = json.dumps(x.doc, default=str, sort_keys=True)
      digest = hashlib.sha256(text.encode()).hexdigest()[:8]
      key = f'{self.name}/test/{x.doc_id}-{digest}'
      if not is_half or half_of(key) == split:
        target = self._target(x.doc)
        examples.append(Example(id=key, prompt=x.args[0], reference=target))
    data = {'shots': count or 0, **self.scorer(), 'task': self.identity}
    return examples[:num_examples], data

  def score_example(self, answer: str, example: Example) -> dict[str, float]:
    """Returns the quality of an answer, and the harness's metrics of it."""
    index = example.id.rpartition('/')[2].partition('-')[0]
    values = self._numbers(int(index), answer)
    quality = values.get(self.metric, math.nan)
    if not _is_share(quality):
      raise ValueError(f'{self.metric} must be from 0 to 1, got {quality}')
    return {'quality': min(max(quality, 0.0), 1.0), **values}

  @property
  def quality_score(self) -> str:
    """Name of the score that is the quality, in [0, 1]."""
    return 'quality'

  def external_parts(self) -> list[str]:
    """Returns the hash of the task, its code included."""
    return [self.identity]

  def check_kind(self) -> dict[str, Any]:
    """Refuses tasks whose answers are not one generated text each."""
    config = self.inner.config
    requests = self._requests(1, config.num_fewshot)
    types = sorted({request.request_type for request in requests})
    # A third argument has images and sounds.
    texts = [len(x.args) == 2 and isinstance(x.args[0], str) for x in requests]
    if config.repeats > 1 or types != [_GENERATION] or texts != [True]:
      raise ValueError(
        f'tasks: {self.name} has the output type {" and ".join(types)} and'
        f' {config.repeats} answers per prompt, but a sweep generates one to a'
        f' text alone; choose a task of the type {_GENERATION} with repeats: 1'
        ' and without images and sounds.'
      )
    return requests[0].args[1]

  def _requests(self, limit: int | None, shots: int | None) -> list[Any]:
    """Returns the harness's requests of the first different documents."""
    # Copies are no evidence of their own, and would lie in both halves.
    self.inner.set_config('num_fewshot', shots or 0)
    self.inner.set_fewshot_seed(_FEWSHOT_SEED)
    first: dict[tuple[str, str], int] = {}
    count = 0
    # The harness shows a progress bar of its own.
    with (
      _one_sentence(f'tasks: the prompts of {self.name} cannot be made'),
      contextlib.redirect_stderr(io.StringIO()),
    ):
      for doc in self.docs:
        if len(first) == limit:
          break
        text = self.inner.doc_to_text(doc)
        # A number is an index into choices of the document.
        text = text if isinstance(text, str) and text.strip() else str(doc)
        first.setdefault((text, self._target(doc)), count)
        count += 1
      self.inner.build_all_requests(limit=count)
    if repeats := count - len(first):
      print(
        f'tasks: {repeats} of {count} documents of {self.name} repeat the'
        ' prompt and target of an earlier one and are left out; the harness'
        ' scores them.',
        file=sys.stderr,
      )
    ids = {*first.values()}
    return [x for x in self.inner.instances if x.doc_id in ids]

  def _target(self, doc: Any) -> str:
    """Returns the reference of a document as a text; of several, the first."""
    target = self.inner.doc_to_target(doc)
    if isinstance(target, int) and self.inner.config.doc_to_choice is not None:
      target = self.inner.doc_to_choice(doc)[target]
    if isinstance(target, list | tuple):
      target = target[0] if target else ''
    return str(target)

  def choose_metric(self) -> str:
    """Returns the metric that is the quality."""
    with _one_sentence(f'tasks: a reference of {self.name} has no score'):
      values = self._numbers(0, self._target(self.docs[0]))
    means = self.inner.aggregation()
    is_best_high = self.inner.higher_is_better()
    for name in (*means, *values):
      is_mean = means.get(name, metrics.mean) in (metrics.mean, metrics.nanmean)
      is_share = _is_share(values.get(name, math.nan))
      if is_mean and is_share and is_best_high.get(name) is not False:
        return name
    raise ValueError(
      f'tasks: {self.name} has no metric that is a mean over answers, from 0 to'
      ' 1, higher being better; add one, such as exact_match.'
    )

  def _numbers(self, index: int, text: str) -> dict[str, float]:
    """Returns the metrics that are a finite number for one answer."""
    doc = self.docs[index]
    request = instance.Instance(_GENERATION, doc, ('', {}), 0, resps=[text])
    self.answer_filter.apply([request])
    answer = request.filtered_resps[self.answer_filter.name]
    values = self.inner.process_results(doc, [answer])
    return {
      name: float(x)
      for name, x in values.items()
      if isinstance(x, int | float | np.generic) and math.isfinite(x)
    }

  def hash(self) -> str:
    """Hashes what decides a score: the task's fields, its code, the harness."""
    fields = dataclasses.asdict(self.inner.config)
    fields = {k: x for k, x in fields.items() if k not in _WITHOUT_EFFECT}
    hashed = [self.scorer()['scorer'], fields, type(self.inner)]
    text = json.dumps(hashed, default=_describe, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def scorer(self) -> dict[str, str]:
    """Returns the harness's version, the filter and the metric in words."""
    version = importlib.metadata.version('lm-eval')
    names = f'filter:{self.answer_filter.name}|metric:{self.metric}|mean'
    return {'scorer': f'lm-eval:{version}|{names}'}


def _is_share(value: float) -> bool:
  """True from 0 to 1; False for nan."""
  return -_TOLERANCE <= value <= 1 + _TOLERANCE


def _describe(value: Any) -> Any:
  """Describes a value that JSON does not hold: code by its module's source."""
  file = inspect.getsourcefile(value) if callable(value) else None
  if file is None:
    return re.sub(r' at 0x\w+', '', repr(value))
  source = pathlib.Path(file).read_bytes()
  return [value.__qualname__, hashlib.sha256(source).hexdigest()]
