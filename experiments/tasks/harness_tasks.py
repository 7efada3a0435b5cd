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
point is the mean; `HarnessTask.aggregate` returns the harness's own numbers.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any, get_args

from cascades import arguments
from experiments.tasks import halves
from experiments.tasks.task import Example, Task, check_split

# What the names of these tasks begin with.
PREFIX = 'lm_eval:'
# All documents that the harness evaluates, or half of them.
_SPLITS = ('test', *get_args(halves.Half))
# Between a task and one of its filters.
_AT = '@'


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarnessTask(Task):
  """A task of the harness."""

  documents: Any
  identity: str

  def score_example(self, answer: str, example: Example) -> dict[str, float]:
    """Returns the quality of an answer, and the harness's metrics of it."""
    return self.documents.scores(_index(example), answer)

  @property
  def quality_score(self) -> str:
    """Name of the score that is the quality, in [0, 1]."""
    return 'quality'

  def external_parts(self) -> list[str]:
    """Returns the hash of the task, its code included."""
    return [self.identity]

  def signature(self) -> str:
    """Returns the harness's version, the filter and the metric in words."""
    return self.documents.signature()

  def provenance(self, path: str | None, shots: int | None) -> dict[str, Any]:
    """Returns the number of worked examples, the scorer and its hash."""
    del path, shots
    return {
      'shots': self.documents.task.config.num_fewshot or 0,
      'scorer': self.signature(),
      'task': self.identity,
    }

  def notes(self) -> tuple[str, ...]:
    """Returns lines on what differs from the harness's own numbers."""
    return self.documents.notes(self.shots)

  def aggregate(
    self, examples: Iterable[Example], answers: Iterable[str]
  ) -> dict[str, float]:
    """Returns the numbers that the harness reports for answers, by metric."""
    pairs = zip(examples, answers, strict=True)
    return self.documents.aggregate({_index(x): text for x, text in pairs})


def is_harness_task(name: str) -> bool:
  """Returns True for names that `load_tasks` takes."""
  return name.startswith(PREFIX)


def load_tasks(spec: str) -> dict[str, HarnessTask]:
  """Returns the tasks of a name, by their names in a sweep."""
  try:
    import lm_eval  # noqa: F401

    from experiments.tasks import harness_documents, harness_files
  except ModuleNotFoundError as error:
    raise ValueError(
      arguments.missing('tasks', 'lm-evaluation-harness', 'eval')
    ) from error
  target, filter_name = spec.removeprefix(PREFIX), ''
  if _AT in target and not pathlib.Path(target).exists():
    target, _, filter_name = target.rpartition(_AT)
  manager, names = harness_files.find_tasks(target)
  with harness_documents.one_sentence(f'{spec} cannot be loaded'):
    loaded = manager.load(names)['tasks']
  suffix = f'{_AT}{filter_name}' if filter_name else ''
  tasks = [
    _sweep_task(task, PREFIX + _file_name(name + suffix), filter_name)
    for name, task in loaded.items()
  ]
  if len({task.name for task in tasks}) < len(tasks):
    raise ValueError(f'tasks: two tasks of {spec} share a name; rename one.')
  return {task.name: task for task in tasks}


def _sweep_task(task: Any, name: str, filter_name: str) -> HarnessTask:
  """Returns the task of a sweep for a task of the harness."""
  from cascades.contrib.lm_eval import Generation
  from experiments.tasks import harness_documents

  own_shots = task.config.num_fewshot
  documents = harness_documents.Documents(task, name, filter_name)
  generation = Generation.from_task(documents.generation_kwargs)

  def load(split='test', seed=0, num_examples=500, path=None, shots=None):
    del seed  # The order is the harness's.
    check_split(name, split, _SPLITS)
    if path:
      raise ValueError(
        f'task.path: cannot be combined with {name}; name data files by'
        ' dataset_kwargs in your own YAML.'
      )
    # As with --num_fewshot, a task that declares none keeps to it.
    count = own_shots if shots is None or own_shots == 0 else shots
    is_half = split != _SPLITS[0]
    requests = documents.requests(None if is_half else num_examples, count)
    examples = (_example(name, documents, request) for request in requests)
    if is_half:
      examples = (x for x in examples if halves.half_of(x.id) == split)
    yield from itertools.islice(examples, num_examples)

  return HarnessTask(
    name=name,
    load=load,
    metrics=(),
    max_new_tokens=generation.max_new_tokens,
    shots=own_shots or 0,
    stop_strings=generation.until,
    documents=documents,
    identity=documents.identity(),
  )


def _example(name: str, documents: Any, request: Any) -> Example:
  """Returns the example of a request of the harness."""
  text = json.dumps(request.doc, default=str, sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return Example(
    id=f'{name}/test/{request.doc_id}-{digest}',
    prompt=request.args[0],
    reference=documents.target(request.doc),
  )


def _index(example: Example) -> int:
  """Returns the index of an example's document, from its id."""
  return int(example.id.rpartition('/')[2].partition('-')[0])


def _file_name(name: str) -> str:
  """Returns a name that a file can have."""
  return re.sub(r'[^\w.@+:-]', '-', name)[:120]
