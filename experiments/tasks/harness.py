"""Tasks of lm-evaluation-harness as tasks of a sweep.

`lm_eval:gsm8k` names a task that the harness comes with, `lm_eval:my/folder`
and `lm_eval:my/task.yaml` name tasks of the user; a group or a tag stands for
its members. Prompts, worked examples and their seed, stop texts, filters and
metrics are the harness's. Of several filters the first counts, or the one after
an `@`: `lm_eval:gsm8k@flexible-extract`. Method, temperature and chat template
are those of the sweep.

The quality of an answer is a number in [0, 1], 1 being best: the first metric
of the task. A metric that the harness computes of all answers together, such as
BLEU, is computed of each answer alone (sentence BLEU), and the quality of a
point is the mean.

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
import itertools
import json
import math
import numbers
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import jinja2
import numpy as np
import sacrebleu
import yaml
from jinja2 import sandbox
from lm_eval import utils
from lm_eval.api import instance, metrics, registry, task
from lm_eval.tasks import TaskManager

from cascades import arguments, files
from cascades.contrib.lm_eval import Generation
from experiments.tasks import answer_metrics, halves
from experiments.tasks.task import Example, Task, check_split

# What the names of these tasks begin with.
PREFIX = 'lm_eval:'
# All documents that the harness evaluates, or half of them.
_SPLITS = ('test', *get_args(halves.Half))
# The parser of the harness, whose constructors are safe.
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
# The type of tasks whose answers are generated.
_GENERATION = 'generate_until'
# The harness's own seed of worked examples.
_FEWSHOT_SEED = 1234
# Metrics in 0..100, by the harness's names of their aggregations.
_PERCENT = ('bleu', 'chrf', 'chrf++', 'ter')
# Fields of a task that do not decide a score: ids hold hashes of documents.
_WITHOUT_EFFECT = (
  *('dataset_path', 'dataset_name', 'dataset_kwargs', 'metadata'),
  *('tag', 'task_alias'),
)
# A perfect BLEU is 100.00000000000004.
_TOLERANCE = 1e-6


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
  tasks = [
    # A name that a file can have.
    _make_task(
      source,
      PREFIX + re.sub(r'[^\w.@+:-]', '-', name + suffix)[:120],
      filter_name,
    )
    for name, source in loaded.items()
  ]
  if len({x.name for x in tasks}) < len(tasks):
    raise ValueError(f'tasks: two tasks of {spec} share a name; rename one.')
  return {x.name: x for x in tasks}


def _find_tasks(target: str) -> tuple[TaskManager, list[str]]:
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
  if yaml_files := sorted(folder.glob('**/*.yaml')) if path.exists() else []:
    _check_files([file.resolve() for file in yaml_files])
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
    # Of tasks, groups and tags, before the code of a task is loaded.
    entry = isinstance(member, str) and manager.task_index.get(member)
    fields = (entry and entry.cfg) or member
    inner = sorted(entry.tags) if entry else []
    if isinstance(fields, dict):
      _check_answers(fields.get('task'), fields.get('unsafe_code'))
      inner = fields.get('task')
      inner = inner if isinstance(inner, list) else [inner]
    members += [x for x in inner if x not in members]
  return manager, names


def _check_answers(name: Any, are_programs: Any) -> None:
  """Refuses programs of models."""
  if are_programs:
    raise ValueError(
      f'tasks: {name} has programs of models as answers, which a sweep does not'
      ' run; run the harness itself: python -m cascades.contrib.lm_eval'
      ' --model=cascades.'
    )


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
  own_shots = inner.config.num_fewshot
  task = HarnessTask(
    name=name,
    metrics=(),
    max_new_tokens=0,
    shots=own_shots or 0,
    inner=inner,
    own_shots=own_shots,
    docs=inner.eval_docs,
    answer_filter=filters[filter_name],
  )
  generation = Generation.from_task(task.check_kind())
  metric, scale = task.choose_metric()
  task = dataclasses.replace(
    task,
    max_new_tokens=generation.max_new_tokens,
    stop_strings=generation.until,
    metric=metric,
    scale=scale,
  )
  return dataclasses.replace(task, identity=task.hash())


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarnessTask(Task):
  """A task of the harness, with its prompts and scores."""

  inner: Any
  own_shots: int | None
  docs: Any
  answer_filter: Any
  metric: str = ''
  # The best value of the metric, 1 or 100.
  scale: int = 1
  identity: str = ''
  # Lines on the documents that were read last.
  warnings: list[str] = dataclasses.field(default_factory=list)

  def load(
    self,
    split: str = 'test',
    seed: int = 0,
    num_examples: int | None = 500,
    path: str | None = None,
    shots: int | None = None,
  ) -> Iterator[Example]:
    """Yields the documents of a split; see `Task.load`."""
    del seed  # The order is the harness's.
    check_split(self.name, split, _SPLITS)
    if path:
      raise ValueError(
        f'task.path: cannot be combined with {self.name}; name data files by'
        ' dataset_kwargs in your own YAML.'
      )
    # As with --num_fewshot, a task that declares none keeps to it.
    count = self.own_shots if shots is None or self.own_shots == 0 else shots
    is_half = split != _SPLITS[0]
    requests = self._requests(None if is_half else num_examples, count)
    examples = map(self._example, requests)
    if is_half:
      examples = (x for x in examples if halves.half_of(x.id) == split)
    yield from itertools.islice(examples, num_examples)

  def _example(self, request: Any) -> Example:
    """Returns the example of a request of the harness."""
    text = json.dumps(request.doc, default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Example(
      id=f'{self.name}/test/{request.doc_id}-{digest}',
      prompt=request.args[0],
      reference=self._target(request.doc),
    )

  def score_example(self, answer: str, example: Example) -> dict[str, float]:
    """Returns the quality of an answer, and the harness's metrics of it."""
    index = example.id.rpartition('/')[2].partition('-')[0]
    values = self._numbers(int(index), answer)
    share = values.get(self.metric, math.nan) / self.scale
    if not self._is_higher_better():
      # Errors of a translation can be more than its words.
      share = 1 - (min(share, 1) if self.scale > 1 else share)
    if not -_TOLERANCE <= share <= 1 + _TOLERANCE:
      raise ValueError(
        f'{self.metric} of {self.name} must be from 0 to {self.scale}, got'
        f' {values.get(self.metric)}'
      )
    return {'quality': min(max(share, 0.0), 1.0), **values}

  @property
  def quality_score(self) -> str:
    """Name of the score that is the quality, in [0, 1]."""
    return 'quality'

  def external_parts(self) -> list[str]:
    """Returns the hash of the task, its code included."""
    return [self.identity]

  def provenance(self, path: str | None, shots: int | None) -> dict[str, Any]:
    """Returns the number of worked examples, the scorer and its hash."""
    del path, shots
    return {
      'shots': self.inner.config.num_fewshot or 0,
      'scorer': self.signature(),
      'task': self.identity,
    }

  def notes(self) -> tuple[str, ...]:
    """Returns lines on what differs from the harness's own numbers."""
    if self._is_mean():
      return tuple(self.warnings)
    line = (
      f'tasks: the quality of {self.name} is the mean {self.metric} of single'
      f' answers; the harness computes {self.metric} of all answers together.'
    )
    return (line, *self.warnings)

  def check_kind(self) -> dict[str, Any]:
    """Refuses tasks whose answers are not one generated text each."""
    config = self.inner.config
    _check_answers(self.name, config.unsafe_code)
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
    """Returns the requests of the first documents, as the harness makes them.

    Documents with the prompt and the target of an earlier one are left out.
    """
    self.inner.set_config('num_fewshot', shots or 0)
    self.inner.set_fewshot_seed(_FEWSHOT_SEED)
    first: dict[tuple[str, str], int] = {}
    num_read = 0
    # The harness shows a progress bar of its own.
    with (
      _one_sentence(f'tasks: the prompts of {self.name} cannot be made'),
      contextlib.redirect_stderr(io.StringIO()),
    ):
      for index, doc in enumerate(self.docs):
        if len(first) == limit:
          break
        text = self.inner.doc_to_text(doc)
        # A number is an index into choices of the document.
        prompt = text if isinstance(text, str) and text.strip() else str(doc)
        first.setdefault((prompt, self._target(doc)), index)
        num_read += 1
      self.inner.build_all_requests(limit=num_read)
      examples = self.inner.sampler.fewshot_docs() if shots else []
    prompts = {index: prompt for (prompt, _), index in first.items()}
    requests = [x for x in self.inner.instances if x.doc_id in prompts]
    self.warnings.clear()
    if num_read > len(first):
      self.warnings.append(
        f'tasks: {num_read - len(first)} of {num_read} documents of {self.name}'
        ' repeat the prompt and target of an earlier one and are left out; the'
        ' harness scores them.'
      )
    # Without a split of their own, or in both splits.
    if all(x.doc in examples for x in requests[:100]) or any(
      x.args[0].count(prompts[x.doc_id]) > 1 for x in requests if shots
    ):
      self.warnings.append(
        f'tasks: {self.name} has no few-shot split apart from the documents'
        ' that it is scored on, so prompts may hold their own answers; name a'
        ' fewshot_split in your own YAML, or give --config.task.shots=0.'
      )
    return requests

  def _target(self, doc: Any) -> str:
    """Returns the reference of a document as a text; of several, the first."""
    target = self.inner.doc_to_target(doc)
    if isinstance(target, int) and self.inner.config.doc_to_choice is not None:
      target = self.inner.doc_to_choice(doc)[target]
    if isinstance(target, list | tuple):
      target = target[0] if target else ''
    return str(target)

  def choose_metric(self) -> tuple[str, int]:
    """Returns the metric that is the quality, and its best value, 1 or 100."""
    with _one_sentence(f'tasks: a reference of {self.name} has no score'):
      values = self._numbers(0, self._target(self.docs[0]))
    # The first one, in the order of its author.
    names = [x for x in (*self.inner.aggregation(), *values) if x in values]
    if not names or not -_TOLERANCE <= values[names[0]] <= 100 + _TOLERANCE:
      raise ValueError(
        f'tasks: {self.name} has no metric for single answers, first in'
        ' metric_list, that is from 0 to 1 or from 0 to 100 for a reference;'
        ' add one, such as exact_match.'
      )
    percents = [registry.get_aggregation(name) for name in _PERCENT]
    metric = names[0]
    is_percent = values[metric] > 1 or self._aggregation(metric) in percents
    return metric, 100 if is_percent else 1

  def _numbers(self, index: int, text: str) -> dict[str, float]:
    """Returns the metrics that are a finite number for one answer."""
    doc = self.docs[index]
    request = instance.Instance(
      request_type=_GENERATION,
      doc=doc,
      arguments=('', {}),
      idx=0,
      resps=[text],
    )
    self.answer_filter.apply([request])
    answer = request.filtered_resps[self.answer_filter.name]
    values = {
      metric: self._number(metric, value)
      for metric, value in self.inner.process_results(doc, [answer]).items()
    }
    return {k: x for k, x in values.items() if math.isfinite(x)}

  def _number(self, metric: str, value: Any) -> float:
    """Returns a metric of one answer as a number; nan if it has none."""
    if isinstance(value, numbers.Real | np.bool_):
      return float(value)
    if value is not None and self._aggregation(metric) is metrics.bleu:
      # BLEU of all answers is 0 for one that has less than four words.
      references, answer = value
      references = [references] if isinstance(references, str) else references
      return float(sacrebleu.sentence_bleu(answer, list(references)).score)
    try:
      return float(self._aggregation(metric)([value]))
    # A function of the user's may need more than one answer.
    except Exception:
      return math.nan

  def _aggregation(self, metric: str) -> Callable[[list[Any]], Any]:
    """Returns the harness's function of the values of all answers."""
    return self.inner.aggregation().get(metric, metrics.mean)

  def _is_mean(self) -> bool:
    """Returns True if the harness takes the mean of the quality's metric."""
    return self._aggregation(self.metric) in (metrics.mean, metrics.nanmean)

  def _is_higher_better(self) -> bool:
    """Returns True unless the task says that lower values are better."""
    return self.inner.higher_is_better().get(self.metric) is not False

  def hash(self) -> str:
    """Hashes what decides a score: the task's fields, its code, the harness."""
    fields = {
      name: value
      for name, value in dataclasses.asdict(self.inner.config).items()
      if name not in _WITHOUT_EFFECT
    }
    hashed = [self.signature(), fields, type(self.inner)]
    text = json.dumps(hashed, default=_describe, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def signature(self) -> str:
    """Returns the harness's version, the filter and the metric in words."""
    parts = (
      f'lm-eval:{importlib.metadata.version("lm-eval")}',
      f'filter:{self.answer_filter.name}',
      f'metric:{self.metric}',
      'mean' if self._is_mean() else 'mean of the metric of each answer alone',
      *([] if self._is_higher_better() else ['1 minus it']),
      *([f'1/{self.scale} of it'] if self.scale > 1 else []),
    )
    return '|'.join(parts)


def _describe(value: Any) -> Any:
  """Describes a value that JSON does not hold: code by its module's source."""
  file = inspect.getsourcefile(value) if callable(value) else None
  if file is None:
    return re.sub(r' at 0x\w+', '', repr(value))
  source = pathlib.Path(file).read_bytes()
  return [value.__qualname__, hashlib.sha256(source).hexdigest()]
