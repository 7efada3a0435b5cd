"""Documents of a task of lm-evaluation-harness, with prompts and scores.

The harness makes the prompts, filters the answers and computes the metrics. Of
a metric that it computes of all answers together, a single answer has the value
of its own: sentence BLEU for BLEU.
"""

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import inspect
import io
import json
import math
import numbers
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import sacrebleu
from lm_eval.api import instance, metrics, registry

from cascades import arguments
from experiments.tasks import metric_specs

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


class Documents:
  """The documents of a task of the harness, with prompts and scores."""

  def __init__(self, task: Any, name: str, filter_name: str):
    """Chooses filter and metric, and scores the reference of a document."""
    self.task, self.name = task, name
    self._docs = task.eval_docs
    self._num_read, self._num_repeats, self._shares_examples = 0, 0, False
    self._filters = {ensemble.name: ensemble for ensemble in task._filters}
    if filter_name and filter_name not in self._filters:
      raise ValueError(
        f'tasks: {name} has no filter {arguments.quote(filter_name)}; choose'
        f' one of {", ".join(self._filters)}.'
      )
    self.filter_name = filter_name or next(iter(self._filters))
    self.generation_kwargs = self._check_kind()
    self.metric, self.scale = self._choose_metric()

  def requests(self, limit: int | None, shots: int | None) -> list[Any]:
    """Returns the requests of the first documents, as the harness makes them.

    Documents with the prompt and the target of an earlier one are left out.
    """
    self.task.set_config('num_fewshot', shots or 0)
    self.task.set_fewshot_seed(_FEWSHOT_SEED)
    # The harness shows a progress bar of its own.
    with (
      one_sentence(f'the prompts of {self.name} cannot be made'),
      contextlib.redirect_stderr(io.StringIO()),
    ):
      prompts = self._distinct_prompts(limit)
      self.task.build_all_requests(limit=self._num_read)
      examples = self.task.sampler.fewshot_docs() if shots else []
    requests = [x for x in self.task.instances if x.doc_id in prompts]
    # Without a split of their own, or in both splits.
    self._shares_examples = all(
      x.doc in examples for x in requests[:100]
    ) or any(x.args[0].count(prompts[x.doc_id]) > 1 for x in requests if shots)
    return requests

  def _distinct_prompts(self, limit: int | None) -> dict[int, str]:
    """Returns the prompts of the first documents that repeat no earlier one."""
    first: dict[tuple[str, str], int] = {}
    self._num_read = 0
    for index, doc in enumerate(self._docs):
      if len(first) == limit:
        break
      text = self.task.doc_to_text(doc)
      # A number is an index into choices of the document.
      prompt = text if isinstance(text, str) and text.strip() else str(doc)
      first.setdefault((prompt, self.target(doc)), index)
      self._num_read += 1
    self._num_repeats = self._num_read - len(first)
    return {index: prompt for (prompt, _), index in first.items()}

  def scores(self, index: int, text: str) -> dict[str, float]:
    """Returns the quality and the metrics of one answer."""
    values = self._numbers(index, text)
    share = values.get(self.metric, math.nan) / self.scale
    if not self._is_higher_better(self.metric):
      # Errors of a translation can be more than its words.
      share = 1 - (min(share, 1) if self.scale > 1 else share)
    if not -_TOLERANCE <= share <= 1 + _TOLERANCE:
      raise ValueError(
        f'{self.metric} of {self.name} must be from 0 to {self.scale}, got'
        f' {values.get(self.metric)}'
      )
    return {'quality': min(max(share, 0.0), 1.0), **values}

  def aggregate(self, answers: Mapping[int, str]) -> dict[str, float]:
    """Returns the harness's numbers of many answers, by metric."""
    values: dict[str, list[Any]] = collections.defaultdict(list)
    for index, text in sorted(answers.items()):
      for metric, value in self._results(index, text).items():
        values[metric].append(value)
    return {
      metric: float(self._aggregation(metric)(x))
      for metric, x in values.items()
    }

  def target(self, doc: Any) -> str:
    """Returns the reference of a document as a text; of several, the first."""
    target = self.task.doc_to_target(doc)
    if isinstance(target, int) and self.task.config.doc_to_choice is not None:
      target = self.task.doc_to_choice(doc)[target]
    if isinstance(target, list | tuple):
      target = target[0] if target else ''
    return str(target)

  def identity(self) -> str:
    """Hashes what decides a score: the task's fields, its code, the harness."""
    fields = {
      name: value
      for name, value in dataclasses.asdict(self.task.config).items()
      if name not in _WITHOUT_EFFECT
    }
    hashed = [self.signature(), fields, type(self.task)]
    text = json.dumps(hashed, default=_describe, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def signature(self) -> str:
    """Returns the harness's version, the filter and the metric in words."""
    parts = (
      f'lm-eval:{importlib.metadata.version("lm-eval")}',
      f'filter:{self.filter_name}',
      f'metric:{self.metric}',
      'mean' if self._is_mean() else 'mean of the metric of each answer alone',
      *([] if self._is_higher_better(self.metric) else ['1 minus it']),
      *([f'1/{self.scale} of it'] if self.scale > 1 else []),
    )
    return '|'.join(parts)

  def notes(self, declared_shots: int) -> tuple[str, ...]:
    """Returns lines on what differs from the harness's own numbers."""
    shots, sentences = self.task.config.num_fewshot, []
    if shots != declared_shots:
      sentences.append(
        f'task.shots: prompts of {self.name} have {shots} worked examples, but'
        f' the task declares {declared_shots}; None uses the declared number.'
      )
    if not self._is_mean():
      sentences.append(
        f'tasks: the quality of {self.name} is the mean {self.metric} of single'
        f' answers; the harness computes {self.metric} of all answers together.'
      )
    if self._num_repeats:
      sentences.append(
        f'tasks: {self._num_repeats} of {self._num_read} documents of'
        f' {self.name} repeat the prompt and target of an earlier one and are'
        ' left out; the harness scores them.'
      )
    if self._shares_examples:
      sentences.append(
        f'tasks: {self.name} has no few-shot split apart from the documents'
        ' that it is scored on, so prompts may hold their own answers; name a'
        ' fewshot_split in your own YAML, or give --config.task.shots=0.'
      )
    return tuple(sentences)

  def _is_mean(self) -> bool:
    """Returns True if the harness takes the mean of the quality's metric."""
    means = metrics.mean, metrics.nanmean
    return self._aggregation(self.metric) in means

  def _check_kind(self) -> dict[str, Any]:
    """Refuses tasks whose answers are not one generated text each."""
    _check_answers(self.name, self.task.config.unsafe_code)
    if self.task.config.repeats > 1:
      raise ValueError(
        f'tasks: {self.name} needs {self.task.config.repeats} answers per'
        ' prompt, but a sweep decodes one; set repeats: 1 in your own YAML.'
      )
    requests = self.requests(1, self.task.config.num_fewshot)
    types = sorted({request.request_type for request in requests})
    if len(requests) != 1 or types != [_GENERATION]:
      raise ValueError(
        f'tasks: {self.name} has the output type {" and ".join(types)}, but a'
        f' sweep generates answers; choose a task of the type {_GENERATION}.'
      )
    if len(requests[0].args) != 2 or not isinstance(requests[0].args[0], str):
      raise ValueError(
        f'tasks: {self.name} has prompts that are not only text; choose a task'
        ' without images and sounds.'
      )
    return requests[0].args[1]

  def _choose_metric(self) -> tuple[str, int]:
    """Returns the metric that is the quality, and its best value, 1 or 100."""
    with one_sentence(f'the first document of {self.name} has no score'):
      values = self._numbers(0, self.target(self._docs[0]))
    if not values:
      raise ValueError(
        f'tasks: {self.name} has no metric for single answers; add one to the'
        ' metric_list of its YAML, such as exact_match.'
      )
    # The first one, in the order of its author.
    metric = next(x for x in (*self.task.aggregation(), *values) if x in values)
    value = values[metric]
    if not -_TOLERANCE <= value <= 100 + _TOLERANCE:
      raise ValueError(
        f'tasks: {metric} of {self.name} is {value:g} for a reference, but'
        ' must be from 0 to 1 or from 0 to 100; put another metric first in'
        ' metric_list.'
      )
    percents = [registry.get_aggregation(name) for name in _PERCENT]
    is_percent = value > 1 or self._aggregation(metric) in percents
    return metric, 100 if is_percent else 1

  def _results(self, index: int, text: str) -> dict[str, Any]:
    """Returns the values of the task's metrics for an answer."""
    doc = self._docs[index]
    request = instance.Instance(
      request_type=_GENERATION,
      doc=doc,
      arguments=('', {}),
      idx=0,
      resps=[text],
    )
    self._filters[self.filter_name].apply([request])
    answer = request.filtered_resps[self.filter_name]
    return self.task.process_results(doc, [answer])

  def _numbers(self, index: int, text: str) -> dict[str, float]:
    """Returns the metrics that are a finite number for one answer."""
    values = {
      metric: self._number(metric, value)
      for metric, value in self._results(index, text).items()
    }
    return {
      metric: value
      for metric, value in values.items()
      if value is not None and math.isfinite(value)
    }

  def _number(self, metric: str, value: Any) -> float | None:
    """Returns a metric of one answer as a number; None if it has none."""
    if value is None:
      return None
    if isinstance(value, numbers.Real | np.bool_):
      return float(value)
    if self._aggregation(metric) is metrics.bleu:
      # BLEU of all answers is 0 for one that has less than four words.
      references, answer = value
      references = [references] if isinstance(references, str) else references
      return float(sacrebleu.sentence_bleu(answer, list(references)).score)
    try:
      return float(self._aggregation(metric)([value]))
    # A function of the user's may need more than one answer.
    except Exception:
      return None

  def _aggregation(self, metric: str) -> Callable[[list[Any]], Any]:
    """Returns the harness's function of the values of all answers."""
    return self.task.aggregation().get(metric, metrics.mean)

  def _is_higher_better(self, metric: str) -> bool:
    """Returns True unless the task says that lower values are better."""
    return self.task.higher_is_better().get(metric) is not False


def check_members(manager: Any, names: Iterable[str]) -> None:
  """Refuses programs among tasks, groups and tags, before they are loaded."""
  members: list[Any] = [*names]
  for member in members:
    entry = isinstance(member, str) and manager.task_index.get(member)
    fields = (entry and entry.cfg) or member
    inner = sorted(entry.tags) if entry else []
    if isinstance(fields, dict):
      _check_answers(fields.get('task'), fields.get('unsafe_code'))
      inner = fields.get('task')
      inner = inner if isinstance(inner, list) else [inner]
    members += [x for x in inner if x not in members]


def _check_answers(name: Any, are_programs: Any) -> None:
  """Refuses programs of models; code of their tasks runs as they are loaded."""
  if are_programs:
    raise ValueError(
      f'tasks: {name} has programs of models as answers, which a sweep does not'
      ' run; run the harness itself: python -m cascades.contrib.lm_eval'
      ' --model=cascades.'
    )


def _describe(value: Any) -> Any:
  """Describes a value that JSON does not hold: code by its module's source."""
  file = inspect.getsourcefile(value) if callable(value) else None
  if file is None:
    return re.sub(r' at 0x\w+', '', repr(value))
  source = pathlib.Path(file).read_bytes()
  return [value.__qualname__, hashlib.sha256(source).hexdigest()]


@contextlib.contextmanager
def one_sentence(problem: str) -> Iterator[None]:
  """Makes a sentence of each error of the harness, the hub or a task's code."""
  try:
    yield
  except KeyboardInterrupt:
    raise
  # What others wrote can fail in any way.
  except BaseException as error:
    cause = error
    while cause.__cause__:
      # The data's library hides the damaged row behind an error of its own.
      cause = cause.__cause__
    reason = metric_specs.describe_error(cause)[:400]
    raise ValueError(
      f'tasks: {problem} ({reason.rstrip(".")}); correct the YAML or its data.'
    ) from error
