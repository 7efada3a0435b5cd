"""What a task is: examples to load, and a score for an answer.

A task is one module of this package that ends in a `TASK`, or in `TASKS` where
several share it. It holds no model and no tokenizer: it turns a split and a
seed into `Example`s, and a pair (answer, reference) into named scores in [0, 1]
or [0, 100]. Its problems are made up (`generated`), or those of a published
set (`benchmark`), which is read from where `sources` says.
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cascades import arguments
from experiments.tasks import sandbox
from experiments.tasks.phrasing import Phraser
from experiments.tasks.sources import DamagedError, Source, at

SPLITS = ('train', 'validation', 'test')

# Draws without a new problem of the split after which there is none.
_REPEATS = 100_000


# One accepted answer, or several.
Reference = str | tuple[str, ...]
# `problem(row, number)` turns a row of a published set into (key, question,
# reference); the key is unique in the set. It raises `sources.DamagedError` for
# a row that is damaged.
Problem = Callable[[Mapping[str, Any], int], tuple[str, str, Reference]]
# `worked(path)` gives (question, answer) pairs of a published set, from beside
# a file of it, or from the hub.
Worked = Callable[[str | None], Sequence[tuple[str, str]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
  """One prompt with its reference answer.

  Attributes:
    id: Unique within the task; names split, seed and number.
    prompt: Text given to the model, exactly as it is.
    reference: Text a perfect model would answer; several where any of them
      will do, and none of them where the set knows none.
  """

  id: str
  prompt: str
  reference: Reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A set of examples and the scores of an answer.

  Attributes:
    name: Key in `TASKS`.
    load: `load(split='test', seed=0, num_examples=500, path=None, shots=None,
      allow_code_execution=False)` yields `Example`s; the same arguments always
      yield the same examples, and fewer of them the first of more. `path` is a
      file of the set as its authors give it out, else it comes from the Hugging
      Face hub; `shots` is the number of worked examples before the question, by
      default the task's. The last must be given where the task `runs_code`.
    score: `score(answer, reference)` maps metric names to floats.
    metric: The score that `quality` reports; None where there is nothing to
      score, and only speed counts.
    max_new_tokens: Where problems are made up, enough for the longest
      reference, in bundled tokens; else a usual limit, in Gemma's.
    problems: `problems(seed, phrasing_style='plain')`, the endless stream of
      (key, prompt, reference) of all splits that `load` picks from; None unless
      problems are made up. The style is one of
      `phrasing.PHRASING_STYLES` and changes only the words of references.
    source: Where the set comes from; None where problems are made up.
    shots: Worked examples before the question.
    stops: Texts at which an answer ends, for a model that would go on with the
      next question. `score` looks at what comes before the first of them.
    corpus: Quality of all answers together, from the sum of each score over
      them, where that is not the mean of `metric`.
    scorer: Tells what computed the scores, with its version.
    runs_code: Whether `score` runs what models write, in `sandbox`.
  """

  name: str
  load: Callable[..., Iterator[Example]]
  score: Callable[[str, Reference], Mapping[str, float]]
  metric: str | None
  max_new_tokens: int
  problems: Callable[..., Iterator[tuple[str, str, str]]] | None = None
  source: Source | None = None
  shots: int = 0
  stops: tuple[str, ...] = ()
  corpus: Callable[[Mapping[str, float]], float] | None = None
  scorer: Callable[[], str] | None = None
  runs_code: bool = False


def ask(question: str) -> str:
  """A prompt of most tasks, which ends where the answer begins."""
  return f'Question: {question}\nAnswer:'


def split_of(key: str) -> str:
  """The split that a problem belongs to, decided by its content alone.

  A hash of the content, not the random generator, decides: whatever the seed,
  no training problem can ever be a held-out one.

  Args:
    key: What makes the problem this problem, whatever its wording.

  Returns:
    'validation' and 'test' for one key in sixteen each, else 'train'.
  """
  bucket = hashlib.sha256(key.encode()).digest()[0] % 16
  return {0: 'test', 1: 'validation'}.get(bucket, 'train')


def generated(
  name: str,
  problem: Callable[[random.Random, Phraser], tuple[str, str, str]],
  **fields,
) -> Task:
  """A task whose problems are made up, without repeats.

  Args:
    name: Key of the task in `TASKS`.
    problem: `problem(rng, phraser)` draws one (key, prompt, reference), whose
      reference the phraser writes.
    **fields: The task's other fields; `score`, `metric` and `max_new_tokens`
      must be among them.

  Returns:
    The task. Its `load` raises ValueError for an unknown split, and ends early
    where a task has no more problems.
  """

  def problems(seed, phrasing_style='plain'):
    rng = random.Random(f'{name}/{seed}')
    writer = Phraser(phrasing_style, random.Random(f'{name}/{seed}/wording'))
    while True:
      yield problem(rng, writer)

  def load(
    split='test',
    seed=0,
    num_examples=500,
    path=None,
    shots=None,
    allow_code_execution=False,
  ):
    del allow_code_execution  # There is no code to run.
    _check_split(name, split, SPLITS)
    if path or shots:
      raise ValueError(
        f'task: {name} makes its problems up, and takes neither a path nor'
        ' shots; leave them out.'
      )
    seen: set[str] = set()
    repeats = 0
    for key, prompt, reference in problems(f'{split}/{seed}'):
      if len(seen) == num_examples or repeats == _REPEATS:
        return
      repeats += 1
      if prompt not in seen and split_of(key) == split:
        yield Example(
          id=f'{name}/{split}/{seed}/{len(seen)}',
          prompt=prompt,
          reference=reference,
        )
        seen.add(prompt)
        repeats = 0

  return Task(name=name, load=load, problems=problems, **fields)


def cut(answer: str, stops: Sequence[str]) -> str:
  """An answer up to the first of the texts at which it ends.

  Args:
    answer: What a model wrote.
    stops: Texts at which an answer ends; they are no part of it.
  """
  for stop in stops:
    answer = answer.partition(stop)[0]
  return answer


def benchmark(
  name: str,
  source: Source,
  problem: Problem,
  *,
  score: Callable[[str, Reference], Mapping[str, float]],
  worked: Sequence[tuple[str, str]] | Worked = (),
  joint: str = ' ',
  stops: Sequence[str] = (),
  **fields,
) -> Task:
  """A task whose problems are those of a published set.

  A prompt is some worked examples, then the question, and ends where the
  answer begins:

    <question> <answer>\\n\\n<question> <answer>\\n\\n<question>

  Args:
    name: Key of the task in `TASKS`.
    source: Where the set comes from.
    problem: Turns a row of the set into a problem.
    score: `score(answer, reference)` maps metric names to floats, for an answer
      that is cut where it should end.
    worked: (question, answer) pairs to be shown; written for this project, so
      that a prompt is the same wherever the set comes from, or what takes them
      from another of its splits.
    joint: Stands between question and answer.
    stops: Texts at which an answer ends.
    **fields: The task's other fields. `metric` and `max_new_tokens` must be
      among them; `shots` is how many of `worked` are shown by default.

  Returns:
    The task. Its `load` takes `num_examples` in an order that the seed
    shuffles, for sets are sorted by subject. It raises ValueError for an
    unknown split, for more shots than there are, for a set that is absent or
    damaged, and for code that may not, or cannot safely, be run.
  """

  def load(
    split='test',
    seed=0,
    num_examples=500,
    path=None,
    shots=None,
    allow_code_execution=False,
  ):
    if task.runs_code:
      if not allow_code_execution:
        raise ValueError(
          f'task: {name} runs the programs that models write, confined as'
          ' experiments/tasks/sandbox.py says; allow it with'
          ' --config.task.allow_code_execution=True.'
        )
      sandbox.check()
    _check_split(name, split, source.splits)
    shots = task.shots if shots is None else shots
    shown = ()
    if shots:
      shown = worked(path) if callable(worked) else worked
      if not 0 < shots <= len(shown):
        raise ValueError(
          f'shots: {shots} will not do for {name}; give 0 to {len(shown)}.'
        )
    head = ''.join(f'{q}{joint}{a}\n\n' for q, a in shown[:shots])
    found = list(_published(source, problem, path, split))
    random.Random(f'{name}/{split}/{seed}').shuffle(found)
    for key, question, reference in found[:num_examples]:
      yield Example(
        id=f'{name}/{split}/{key}',
        prompt=head + question,
        reference=reference,
      )

  # Nobody calls `load` before there is the task that it looks at.
  task = Task(
    name=name,
    load=load,
    score=lambda answer, reference: score(cut(answer, stops), reference),
    source=source,
    stops=tuple(stops),
    **fields,
  )
  return task


def _published(
  source: Source, problem: Problem, path: str | None, split: str
) -> Iterator[tuple[str, str, Reference]]:
  """The problems of a split of a published set, in the set's order.

  Args:
    source: Where the set comes from.
    problem: Turns a row of the set into a problem.
    path: A file of the set; None for the Hugging Face hub.
    split: Which part of the set.

  Yields:
    (key, question, reference).

  Raises:
    ValueError: The set is absent or damaged, or has no such rows.
  """
  keys = set()
  try:
    for number, (place, row) in enumerate(source.rows(path, split)):
      with at(place):
        if source.of_split and not source.of_split(row, split):
          continue
        key, question, reference = problem(row, number)
        if key in keys:
          raise DamagedError(f'has the id {key!r} a second time')
      keys.add(key)
      yield key, question, reference
    if not keys:
      raise DamagedError(f'{path or source.hub} has no {split} rows')
  except DamagedError as e:
    raise ValueError(f'path: {e}; give {source.get}.') from None


def _check_split(name: str, split: str, splits: Sequence[str]) -> None:
  """Refuses, with a ValueError, a split that a task of that name has not."""
  if split not in splits:
    raise ValueError(
      f'split: {arguments.quote(split)} is not a split of {name}; choose one'
      f' of {", ".join(splits)}.'
    )
