"""Tasks: examples to load, and metrics that score the answers.

A task has no model and no tokenizer: it turns a split and a seed into
`Example`s, and an answer with its reference into named scores in [0, 1] or
[0, 100]. Its problems are generated, or are rows of a published set, which fill
templates. `catalog` declares the project's tasks.
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from cascades import Conversation, arguments
from experiments.tasks.answer_metrics import METRICS, Metric, Reference
from experiments.tasks.data_files import (
  DataFile,
  RowError,
  Source,
  Template,
  get_texts,
  refusal,
)
from experiments.tasks.phrasing import Phraser

SPLITS = ('train', 'validation', 'test')
# Worked examples of published sets, which were written for this project: the
# prompt of a set does not depend on its source.
_WORKED = pathlib.Path(__file__).with_name('worked')
# Upper limit of worked examples taken from the set.
_MAX_WORKED_EXAMPLES = 32
# Draws without a new problem of the split after which the task is exhausted.
_REPEATS = 100_000


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
  r"""A set of examples and the metrics of its answers.

  It has a `problem` to draw, or a `source` of rows. A prompt of a published set
  has some worked examples, then the question, and ends where the answer begins:

    <question> <answer>\n\n<question> <answer>\n\n<question>

  Templates name fields of a row in braces: 'Question: {question}\nAnswer:', or
  '{translation.en}' for a field of an object. Tasks that come from elsewhere
  derive from this class, and replace `load`.

  Attributes:
    name: Key in `TASKS`.
    metrics: Metrics of an answer: keys of `METRICS`, or metrics that are not
      registered. The quality is the first score of the first metric; tasks
      without metrics measure only speed.
    max_new_tokens: Limit of an answer: of generated tasks, enough for the
      longest reference in bundled tokens; else a usual limit in Gemma's.
    problem: `problem(rng, phraser)` draws one (key, prompt, reference); the
      phraser writes the reference.
    source: Source of a published set.
    fields: Returns the fields of a row, and raises `RowError` for a bad one;
      None for the row itself.
    key: Field with the id of a row, which is unique in the set; '' takes the
      number of the row.
    question: Template of the question.
    answer: Template of the reference; '' for none.
    answers: Field with a list of accepted answers; '' for none.
    no_answer: Reference of a row without answers.
    shots: Default number of worked examples before the question.
    worked_beside: Name of a file, beside that of the set, whose first rows are
      the worked examples; without a file, the hub's validation split has them.
      '' takes them from the file `worked/NAME.jsonl`.
    separator: Text between a question and its answer.
    stop_strings: Texts that end an answer, for models that would go on with the
      next question; metrics see the answer up to the first of them.
    configure: Returns the task of a config's fields; None for a task that needs
      none of them.

  Raises:
    ValueError: A metric is unknown.
  """

  name: str
  metrics: Sequence[Metric | str]
  max_new_tokens: int
  problem: Callable[[random.Random, Phraser], tuple[str, str, str]] | None = (
    None
  )
  source: Source | None = None
  fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
  key: str = ''
  question: str = 'Question: {question}\nAnswer:'
  answer: str = ''
  answers: str = ''
  no_answer: Reference = ()
  shots: int = 0
  worked_beside: str = ''
  separator: str = ' '
  stop_strings: tuple[str, ...] = ()
  configure: Callable[[Mapping[str, Any]], 'Task'] | None = None

  def __post_init__(self):
    entries = tuple(
      METRICS[metric] if isinstance(metric, str) else metric
      for metric in self.metrics
    )
    object.__setattr__(self, 'metrics', entries)

  def load(
    self,
    split: str = 'test',
    seed: int = 0,
    num_examples: int | None = 500,
    path: str | None = None,
    shots: int | None = None,
  ) -> Iterator[Example]:
    """Yields the examples of a split.

    Examples of a published set come in an order that the seed shuffles, for
    sets are sorted by subject.

    Args:
      split: Split; of generated tasks, one of `SPLITS`.
      seed: The same arguments always yield the same examples.
      num_examples: A smaller number yields a prefix; a generated task ends
        early when no new problem is found.
      path: A file of the set; None for the Hugging Face hub.
      shots: Worked examples before the question; None for the task's.

    Yields:
      The examples.

    Raises:
      ValueError: The split is unknown, there are not so many shots, or the set
        is absent or damaged; a generated task takes neither path nor shots.
    """
    source = self.source
    check_split(self.name, split, source.splits if source else SPLITS)
    if source:
      head, prefix = self._head(path, shots), f'{self.name}/{split}'
      problems = list(self._read(path, split))
      random.Random(f'{prefix}/{seed}').shuffle(problems)
    else:
      if path or shots:
        raise ValueError(
          f'task: {self.name} generates its problems and cannot be combined'
          ' with a path or shots; leave both out.'
        )
      head, prefix = '', f'{self.name}/{split}/{seed}'
      problems = self._draw_new(split, seed)
    for key, question, reference in itertools.islice(problems, num_examples):
      if f'\n\n{question}{self.separator}' in f'\n\n{head}':
        raise ValueError(
          f'task.shots: row {key} of {self.name}, split {split}, is a worked'
          ' example, so its own answer would stand in its prompt; choose'
          ' another split, or --config.task.shots=0.'
        )
      yield Example(
        id=f'{prefix}/{key}', prompt=head + question, reference=reference
      )

  def problems(
    self, seed: str, phrasing_style: str = 'plain'
  ) -> Iterator[tuple[str, str, str]]:
    """Yields (key, prompt, reference) of all splits of a generated task.

    Args:
      seed: Seed of the stream, which has no end.
      phrasing_style: One of `phrasing.PHRASING_STYLES`; it changes only the
        words of references.

    Yields:
      The problems that `load` picks from.
    """
    rng = random.Random(f'{self.name}/{seed}')
    # The last word is part of the seed: another one gives other references.
    phraser_rng = random.Random(f'{self.name}/{seed}/wording')
    phraser = Phraser(phrasing_style, phraser_rng)
    while True:
      yield self.problem(rng, phraser)

  def _draw_new(self, split: str, seed: int) -> Iterator[tuple[int, str, str]]:
    """Yields (number, prompt, reference) of a split, without repeats."""
    prompts: set[str] = set()
    repeats = 0
    for key, prompt, reference in self.problems(f'{split}/{seed}'):
      if repeats == _REPEATS:
        return
      repeats += 1
      if prompt not in prompts and split_of(key) == split:
        yield len(prompts), prompt, reference
        prompts.add(prompt)
        repeats = 0

  def _read(
    self, path: str | None, split: str
  ) -> Iterator[tuple[str, str, Reference]]:
    """Yields (key, question, reference) of a split, in the set's order."""
    source, keys = self.source, set()
    name = pathlib.PurePath(path).name if path else f'{source.hub}'
    for number, (place, row) in enumerate(source.rows(path, split)):
      try:
        problem = self._fill(row, number)
        if problem[0] in keys:
          raise RowError(f'has the id {problem[0]!r} a second time')
      except RowError as error:
        fault = error.args[0]
        raise refusal('path', name, place, fault, source.advice) from None
      keys.add(problem[0])
      yield problem
    if not keys:
      raise refusal('path', name, '', 'has no rows', source.advice)

  def _fill(
    self, row: Mapping[str, Any], number: int
  ) -> tuple[str, str, Reference]:
    """Returns (key, question, reference) of a row."""
    fields = self.fields(row) if self.fields else row

    def write(template: str) -> str:
      return _template(template).fill(fields, strip=True)

    question = write(self.question)
    if self.answer:
      reference = write(self.answer)
      for metric in self.metrics:
        metric.check_reference(reference)
    else:
      accepted = get_texts(fields, self.answers) if self.answers else ()
      reference = (
        tuple(dict.fromkeys(x.strip() for x in accepted)) or self.no_answer
      )
    return write(self.key) if self.key else str(number), question, reference

  def _head(self, path: str | None, shots: int | None) -> str:
    """Returns the text before a question."""
    shots = self.shots if shots is None else shots
    if not shots:
      return ''
    if self.worked_beside:
      pairs = self._pairs_beside(path)
    else:
      # In the form of a user's worked examples.
      file = _WORKED / f'{self.name}.jsonl'
      rows = DataFile('shots', str(file)).rows() if file.exists() else ()
      pairs = [(row['prompt'], row['reference']) for _, row in rows]
    if not 0 < shots <= len(pairs):
      raise ValueError(
        f'shots: must be from 0 to {len(pairs)} for {self.name}, got {shots}.'
      )
    return ''.join(f'{q}{self.separator}{a}\n\n' for q, a in pairs[:shots])

  def _pairs_beside(self, path: str | None) -> list[tuple[str, Reference]]:
    """Returns (question, answer) pairs of the validation split of a set."""
    path_beside = path and str(pathlib.Path(path).with_name(self.worked_beside))
    try:
      problems = self._read(path_beside, 'validation')
      return [x[1:] for x in itertools.islice(problems, _MAX_WORKED_EXAMPLES)]
    except ValueError as e:
      raise ValueError(
        f'{str(e).rstrip(".")}; the worked examples come from this file, so put'
        ' it there, or set shots to 0.'
      ) from None

  def score(self, answer: str, reference: Reference) -> dict[str, float]:
    """Returns the scores of an answer, by name."""
    for stop in self.stop_strings:
      answer = answer.partition(stop)[0]
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


@functools.cache
def _template(text: str) -> Template:
  """Parses a template once."""
  return Template('question', text)


def split_of(key: str) -> str:
  """Returns the split of a problem, which its content alone decides.

  A hash of the content decides, not the random generator: no training problem
  can be a held-out one under any seed.
  """
  bucket = hashlib.sha256(key.encode()).digest()[0] % 16
  return {0: 'test', 1: 'validation'}.get(bucket, 'train')


def check_split(name: str, split: str, splits: Collection[str]) -> None:
  """Raises ValueError for a split that the task of that name lacks."""
  if split not in splits:
    raise ValueError(
      f'split: must be one of {", ".join(splits)} for {name}, got'
      f' {arguments.quote(split)}.'
    )
