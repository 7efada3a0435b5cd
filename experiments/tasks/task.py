"""Tasks: examples to load, and metrics that score the answers.

A task has no model and no tokenizer: it turns a split and a seed into
`Example`s, and an answer with its reference into named scores in [0, 1] or
[0, 100]. `task_spec` builds tasks from declarations.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from cascades import Conversation, arguments
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.data_files import Source
from experiments.tasks.short_answers import Reference

SPLITS = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
  """One prompt with its reference answer.

  Attributes:
    id: Unique within the task; names split, seed and number.
    prompt: Text given to the model, unchanged; or messages.
    reference: The ideal answer; a tuple of all accepted answers where there
      are several, which is empty where the set knows none.
  """

  id: str
  prompt: str | Conversation
  reference: Reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A set of examples and the metrics of its answers.

  Attributes:
    name: Key in `TASKS`.
    load: `load(split='test', seed=0, num_examples=500, path=None, shots=None)`
      yields `Example`s; the same arguments always yield the same examples, and
      a smaller `num_examples` a prefix. `path` is a file of the set, else the
      set comes from the Hugging Face hub; `shots` is the number of worked
      examples before the question, by default the task's.
    metrics: Metrics of an answer: keys of `METRICS`, or metrics that are not
      registered. The quality is the first score of the first metric; tasks
      without metrics measure only speed.
    max_new_tokens: Limit of an answer: of generated tasks, enough for the
      longest reference in bundled tokens; else a usual limit in Gemma's.
    problems: `problems(seed, phrasing_style='plain')`, the endless stream of
      (key, prompt, reference) of all splits that `load` picks from; None unless
      problems are generated. The style is one of `phrasing.PHRASING_STYLES` and
      changes only the words of references.
    source: Source of a published set; None where problems are generated.
    shots: Worked examples before the question.
    stop_strings: Texts that end an answer, for models that would go on with the
      next question; metrics see the answer up to the first of them.
    configure: Returns the task of a config's fields; None for a task that needs
      none of them.

  Raises:
    ValueError: A metric is unknown.
  """

  name: str
  load: Callable[..., Iterator[Example]]
  metrics: Sequence[Metric | str]
  max_new_tokens: int
  problems: Callable[..., Iterator[tuple[str, str, str]]] | None = None
  source: Source | None = None
  shots: int = 0
  stop_strings: tuple[str, ...] = ()
  configure: Callable[[Mapping[str, Any]], 'Task'] | None = None

  def __post_init__(self):
    entries = tuple(
      METRICS[metric] if isinstance(metric, str) else metric
      for metric in self.metrics
    )
    object.__setattr__(self, 'metrics', entries)

  def score(self, answer: str, reference: Reference) -> dict[str, float]:
    """Returns the scores of an answer, by name."""
    answer = truncate(answer, self.stop_strings)
    scores: dict[str, float] = {}
    for metric in self.metrics:
      scores |= metric.score(answer, reference)
    return scores

  def score_example(self, answer: str, example: Example) -> dict[str, float]:
    """Returns the scores of an answer to an example, by name."""
    return self.score(answer, example.reference)

  @property
  def quality_score(self) -> str | None:
    """Name of the score that is the quality; None without metrics."""
    return self.metrics[0].scores[0] if self.metrics else None

  @property
  def corpus(self) -> Callable[[Mapping[str, float]], float] | None:
    """Quality of several answers from summed scores; None if it is a mean."""
    return self.metrics[0].corpus if self.metrics else None

  def external_parts(self) -> list[Any]:
    """Lists code from outside that the name of a point has to hash."""
    return [self]

  def signature(self) -> str:
    """Returns the libraries, versions and options behind the scores, or ''."""
    return ' '.join(m.signature() for m in self.metrics if m.signature)

  def notes(self) -> tuple[str, ...]:
    """Returns lines that a user of the loaded examples must know."""
    return ()

  def provenance(self, path: str | None, shots: int | None) -> dict[str, Any]:
    """Returns the provenance of the data of a published set.

    Args:
      path: The file of the set; None for the Hugging Face hub.
      shots: Worked examples before a question; None for the task's own.

    Returns:
      The number of worked examples, the hashes of the files and the scorer;
      nothing where problems are generated.
    """
    if self.source is None:
      return {}
    data = {
      'shots': self.shots if shots is None else shots,
      **self.source.provenance(path),
    }
    if signature := self.signature():
      data['scorer'] = signature
    return data


def split_of(key: str) -> str:
  """Returns the split of a problem, which its content alone decides.

  A hash of the content decides, not the random generator: no training problem
  can be a held-out one under any seed.
  """
  bucket = hashlib.sha256(key.encode()).digest()[0] % 16
  return {0: 'test', 1: 'validation'}.get(bucket, 'train')


def truncate(answer: str, stop_strings: Sequence[str]) -> str:
  """Returns an answer up to the first stop string."""
  for stop in stop_strings:
    answer = answer.partition(stop)[0]
  return answer


def check_split(name: str, split: str, splits: Collection[str]) -> None:
  """Raises ValueError for a split that the task of that name lacks."""
  if split not in splits:
    raise ValueError(
      f'split: must be one of {", ".join(splits)} for {name}, got'
      f' {arguments.quote(split)}.'
    )
