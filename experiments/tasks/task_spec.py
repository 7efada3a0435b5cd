"""Declarations of tasks, and the builder that turns them into tasks.

The problems of a task are generated, or are those of a published set, whose
rows fill templates. `catalog` declares the project's tasks.
"""

import dataclasses
import functools
import itertools
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.data_files import (
  DataFile,
  RowError,
  Source,
  Template,
  get_texts,
  refusal,
)
from experiments.tasks.phrasing import Phraser
from experiments.tasks.short_answers import Reference
from experiments.tasks.task import (
  SPLITS,
  Example,
  Task,
  check_split,
  split_of,
)

# Worked examples of published sets, which were written for this project: the
# prompt of a set does not depend on its source.
_WORKED = pathlib.Path(__file__).with_name('worked')
# Upper limit of worked examples taken from the set.
_MAX_WORKED_EXAMPLES = 32
# Draws without a new problem of the split after which the task is exhausted.
_REPEATS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
  r"""The declaration of a task: a `problem` to draw, or a `source` of rows.

  A prompt of a published set has some worked examples, then the question, and
  ends where the answer begins:

    <question> <answer>\n\n<question> <answer>\n\n<question>

  Templates name fields of a row in braces: 'Question: {question}\nAnswer:', or
  '{translation.en}' for a field of an object.

  Attributes:
    name: Key of the task in `TASKS`.
    metrics: Metrics of an answer, see `Task`.
    max_new_tokens: Limit of an answer, see `Task`.
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
    stop_strings: Texts that end an answer.

  Raises:
    ValueError: There is not exactly one of `problem` and `source`.
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

  def __post_init__(self):
    if (self.problem is None) == (self.source is None):
      raise ValueError(
        f'task: {self.name} must have either problem or source; give one.'
      )


def build_task(spec: TaskSpec) -> Task:
  """Returns the task of a declaration.

  Its `load` raises ValueError for an unknown split. A generated task takes
  neither path nor shots, and ends early when no new problem is found. Examples
  of a published set come in an order that the seed shuffles, for sets are
  sorted by subject; too many shots and an absent or damaged set are refused.
  """
  return Task(
    name=spec.name,
    load=functools.partial(_load, spec),
    metrics=spec.metrics,
    max_new_tokens=spec.max_new_tokens,
    problems=functools.partial(_draw, spec) if spec.problem else None,
    source=spec.source,
    shots=spec.shots,
    stop_strings=spec.stop_strings,
  )


def _load(
  spec: TaskSpec,
  *,
  split: str = 'test',
  seed: int = 0,
  num_examples: int | None = 500,
  path: str | None = None,
  shots: int | None = None,
) -> Iterator[Example]:
  """Yields the examples of a task."""
  check_split(spec.name, split, spec.source.splits if spec.source else SPLITS)
  if spec.source:
    head, prefix = _head(spec, path, shots), f'{spec.name}/{split}'
    problems = list(_read(spec, path, split))
    random.Random(f'{prefix}/{seed}').shuffle(problems)
  else:
    if path or shots:
      raise ValueError(
        f'task: {spec.name} generates its problems and cannot be combined with'
        ' a path or shots; leave both out.'
      )
    head, prefix = '', f'{spec.name}/{split}/{seed}'
    problems = _draw_new(spec, split, seed)
  for key, question, reference in itertools.islice(problems, num_examples):
    if f'\n\n{question}{spec.separator}' in f'\n\n{head}':
      raise ValueError(
        f'task.shots: row {key} of {spec.name}, split {split}, is a worked'
        ' example, so its own answer would stand in its prompt; choose another'
        ' split, or --config.task.shots=0.'
      )
    yield Example(
      id=f'{prefix}/{key}', prompt=head + question, reference=reference
    )


def _draw(
  spec: TaskSpec, seed: str, phrasing_style: str = 'plain'
) -> Iterator[tuple[str, str, str]]:
  """Yields (key, prompt, reference) of all splits, without an end."""
  rng = random.Random(f'{spec.name}/{seed}')
  # The last word is part of the seed: another one gives other references.
  phraser_rng = random.Random(f'{spec.name}/{seed}/wording')
  phraser = Phraser(phrasing_style, phraser_rng)
  while True:
    yield spec.problem(rng, phraser)


def _draw_new(
  spec: TaskSpec, split: str, seed: int
) -> Iterator[tuple[int, str, str]]:
  """Yields (number, prompt, reference) of a split, without repeats."""
  prompts: set[str] = set()
  repeats = 0
  for key, prompt, reference in _draw(spec, f'{split}/{seed}'):
    if repeats == _REPEATS:
      return
    repeats += 1
    if prompt not in prompts and split_of(key) == split:
      yield len(prompts), prompt, reference
      prompts.add(prompt)
      repeats = 0


def _read(
  spec: TaskSpec, path: str | None, split: str
) -> Iterator[tuple[str, str, Reference]]:
  """Yields (key, question, reference) of a split, in the set's order."""
  source, keys = spec.source, set()
  name = pathlib.PurePath(path).name if path else f'{source.hub}'
  for number, (place, row) in enumerate(source.rows(path, split)):
    try:
      problem = _fill(spec, row, number)
      if problem[0] in keys:
        raise RowError(f'has the id {problem[0]!r} a second time')
    except RowError as error:
      fault = error.args[0]
      raise refusal('path', name, place, fault, source.advice) from None
    keys.add(problem[0])
    yield problem
  if not keys:
    raise refusal('path', name, '', 'has no rows', source.advice)


@functools.cache
def _template(text: str) -> Template:
  """Parses a template once."""
  return Template('question', text)


def _fill(
  spec: TaskSpec, row: Mapping[str, Any], number: int
) -> tuple[str, str, Reference]:
  """Returns (key, question, reference) of a row."""
  fields = spec.fields(row) if spec.fields else row

  def write(template: str) -> str:
    return _template(template).fill(fields, strip=True)

  question = write(spec.question)
  if spec.answer:
    reference = write(spec.answer)
    for metric in spec.metrics:
      entry = METRICS[metric] if isinstance(metric, str) else metric
      entry.check_reference(reference)
  else:
    accepted = get_texts(fields, spec.answers) if spec.answers else ()
    reference = (
      tuple(dict.fromkeys(x.strip() for x in accepted)) or spec.no_answer
    )
  key = write(spec.key) if spec.key else str(number)
  return key, question, reference


def _head(spec: TaskSpec, path: str | None, shots: int | None) -> str:
  """Returns the text before a question; raises ValueError for bad shots."""
  shots = spec.shots if shots is None else shots
  if not shots:
    return ''
  if spec.worked_beside:
    pairs = _pairs_beside(spec, path)
  else:
    pairs = read_worked_examples(spec.name)
  if not 0 < shots <= len(pairs):
    raise ValueError(
      f'shots: must be from 0 to {len(pairs)} for {spec.name}, got {shots}.'
    )
  return ''.join(f'{q}{spec.separator}{a}\n\n' for q, a in pairs[:shots])


def read_worked_examples(name: str) -> list[tuple[str, str]]:
  """Returns the (question, answer) pairs that were written for a set.

  They are files of the form that a user's worked examples have.
  """
  path = _WORKED / f'{name}.jsonl'
  rows = DataFile('shots', str(path)).rows() if path.exists() else ()
  return [(row['prompt'], row['reference']) for _, row in rows]


def _pairs_beside(
  spec: TaskSpec, path: str | None
) -> list[tuple[str, Reference]]:
  """Returns (question, answer) pairs of the validation split of a set."""
  path_beside = path and str(pathlib.Path(path).with_name(spec.worked_beside))
  try:
    problems = _read(spec, path_beside, 'validation')
    return [
      problem[1:]
      for problem in itertools.islice(problems, _MAX_WORKED_EXAMPLES)
    ]
  except ValueError as e:
    raise ValueError(
      f'{str(e).rstrip(".")}; the worked examples come from this file, so put'
      ' it there, or set shots to 0.'
    ) from None
