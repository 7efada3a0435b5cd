"""What a task is: examples to load, and a score for an answer.

A task is one module of this package that ends in a `TASK`. It holds no model
and no tokenizer: it turns a split and a seed into `Example`s, and a pair
(answer, reference) into named scores in [0, 1] or [0, 100].
"""

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping

SPLITS = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
  """One prompt with its reference answer.

  Attributes:
    id: Unique within the task; names split, seed and number.
    prompt: Text given to the model, exactly as it is.
    reference: Text a perfect model would answer.
  """

  id: str
  prompt: str
  reference: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A set of examples and the scores of an answer.

  Attributes:
    name: Key in `TASKS`.
    load: `load(split='test', seed=0, num_examples=500)` yields `Example`s;
      the same arguments always yield the same examples.
    problems: `problems(seed)`, the endless (key, prompt, reference) stream of
      all splits that `load` picks from.
    score: `score(answer, reference)` maps metric names to floats.
    metric: The score that `quality` reports.
    max_new_tokens: Enough for the longest reference, in bundled tokens.
  """

  name: str
  load: Callable[..., Iterator[Example]]
  problems: Callable[..., Iterator[tuple[str, str, str]]]
  score: Callable[[str, str], Mapping[str, float]]
  metric: str
  max_new_tokens: int


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
  problem: Callable[[random.Random], tuple[str, str, str]],
  **fields,
) -> Task:
  """A task whose problems are made up, without repeats and without end.

  Args:
    name: The task's.
    problem: Draws one (key, prompt, reference).
    **fields: The task's other fields.

  Returns:
    The task. Its `load` raises ValueError for an unknown split, and never
    ends where `num_examples` is None.
  """

  def problems(seed):
    rng = random.Random(f'{name}/{seed}')
    while True:
      yield problem(rng)

  def load(split='test', seed=0, num_examples=500):
    if split not in SPLITS:
      raise ValueError(
        f'split: {split!r} is not a split of {name}; choose one of'
        f' {", ".join(SPLITS)}.'
      )
    seen: set[str] = set()
    number = itertools.count()
    for key, prompt, reference in problems(f'{split}/{seed}'):
      if len(seen) == num_examples:
        return
      if prompt not in seen and split_of(key) == split:
        seen.add(prompt)
        yield Example(
          id=f'{name}/{split}/{seed}/{next(number)}',
          prompt=prompt,
          reference=reference,
        )

  return Task(name=name, load=load, problems=problems, **fields)
