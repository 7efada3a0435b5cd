"""Texts that a drafter learns from: the user's, and its verifier's own answers.

A document is a prompt and its answer. Rows are documents one after the other,
as few-shot prompts have them, so that every position of a row is of the kind
that the drafter will be asked about.
"""

import collections
import itertools
import json
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cascades import atomic
from cascades.models import tokenizers
from cascades.untrusted import bounded, schema
from experiments import records
from experiments.tasks import TASKS

# Prompts that are answered between two times that the answers are kept.
AT_A_TIME = 256
# Stands between documents.
BETWEEN = '\n\n'


class Document(NamedTuple):
  """A prompt, and what is to follow it.

  Attributes:
    prompt: Ends where an answer begins.
    answer: With what stands before its first word; '' where there is none.
  """

  prompt: str
  answer: str

  @property
  def text(self) -> str:
    """All of it."""
    return self.prompt + self.answer


def documents(config: ConfigDict) -> list[Document]:
  """What a config names as texts, in an order that its seed shuffles.

  Args:
    config: Its `text` is a file: of a published set, where `tasks` says which;
      else a text a line, or JSON objects with `prompt` and, if there is one,
      `answer`.

  Raises:
    ValueError: The file is absent or damaged, or there is none.
  """
  if not config.text:
    raise ValueError(
      'text: give the file to learn from with --config.text=...: a text a line,'
      ' JSON objects with prompt and answer, or one of the sets that'
      ' --config.tasks names.'
    )
  if config.tasks:
    found = [
      Document(example.prompt, f' {_first(example.reference)}')
      for task in config.tasks
      for example in _task(task).load(
        split='train', path=config.text, shots=0, num_examples=None
      )
    ]
  else:
    found = list(_lines(pathlib.Path(config.text)))
  if len(found) < 2 * config.held_out:
    raise ValueError(
      f'text: {config.text} has {len(found)} documents; give'
      f' {2 * config.held_out} or more, as {config.held_out} are held out.'
    )
  random.Random(f'{config.seed}/documents').shuffle(found)
  return found


def _first(reference: str | tuple[str, ...]) -> str:
  return reference if isinstance(reference, str) else (*reference, '')[0]


def _task(name: str):
  if name not in TASKS or not TASKS[name].source:
    known = [name for name, task in TASKS.items() if task.source]
    raise ValueError(
      f'tasks: {name!r} is no published set; there are {", ".join(known)}.'
    )
  return TASKS[name]


class _Row(schema.Schema):
  """A line of a file of prompts."""

  prompt: str
  answer: str = ''


def _lines(path: pathlib.Path) -> Iterator[Document]:
  """Documents of a file of lines."""

  def refuse(number: int, why: object) -> ValueError:
    return ValueError(f'text: {path}, line {number}: {why}.')

  number = 0
  try:
    for line in bounded.read_lines(path, refuse):
      number += 1
      if not line.strip():
        continue
      if path.suffix == '.jsonl':
        row = _Row.parse(bounded.parse_json(line))
        yield Document(row.prompt, row.answer)
      else:
        yield Document(line.decode().rstrip('\r\n'), '')
  except OSError as e:
    raise ValueError(f'text: {path} cannot be read ({e.strerror}).') from None
  except UnicodeDecodeError:
    raise refuse(number, 'it is no UTF-8 text') from None
  except ValueError as e:
    if str(e).startswith('text: '):
      raise
    raise refuse(number, e) from None


def asked(
  config: ConfigDict,
  found: Sequence[Document],
  count: int,
  seed: str,
  again: bool = True,
) -> list[tuple[str, Document]]:
  """Prompts with worked examples before them, for the verifier to answer.

  Args:
    config: Says how many examples, `shots`.
    found: To choose from.
    count: How many prompts.
    seed: Of the choice.
    again: Whether a document may be asked twice; if not, only once there is
      none left that is no example.

  Returns:
    Each prompt with its examples, and the document that it is of.

  Raises:
    ValueError: There are not enough to choose from.
  """
  if len(found) <= config.shots:
    raise ValueError(
      f'shots: {config.shots} examples and a prompt cannot be chosen from'
      f' {len(found)} documents; give less, or more of the texts.'
    )
  rng = random.Random(f'{config.seed}/{seed}')
  prompts, numbers, seen = [], range(len(found)), set()
  for i in range(count):
    if i % AT_A_TIME == 0:
      # The same for many prompts, so that they are read once for all of them.
      shown = rng.sample(numbers, config.shots)
    if len(seen) + config.shots >= len(numbers):
      seen.clear()
    # The answer of what is shown would stand in the prompt.
    while (last := rng.choice(numbers)) in shown or last in seen:
      continue
    if not again:
      seen.add(last)
    texts = [found[number].text for number in shown]
    prompts.append((BETWEEN.join([*texts, found[last].prompt]), found[last]))
  return prompts


class Rows(NamedTuple):
  """Documents one after the other, and the places that a drafter is asked at.

  Attributes:
    tokens: Ids, [rows, length], each row beginning with that of a text.
    places: Where a token of an answer is next, [rows, places], upwards; a row
      that has fewer repeats its last.
    counts: Whether a place counts, [rows, places].
  """

  tokens: np.ndarray
  places: np.ndarray
  counts: np.ndarray


def rows(
  config: ConfigDict,
  kinds: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  count: int,
  seed: str,
) -> Rows:
  """Rows of documents in random order, each cut at its end.

  Only answers are ever drafted, so only they count: of a document without one,
  all of it; of a row's first, which no example stands before, nothing if the
  prompts are to have examples.

  Args:
    config: Says how long a row is, `row_length`; and `shots`.
    kinds: Sets to choose from, each as often as the others.
    tokenizer: The verifier's.
    count: How many rows.
    seed: Of the choice; a row hangs on nothing else.
  """
  tokens = np.zeros((count, config.row_length), np.int32)
  found = []
  for i, row in enumerate(tokens):
    rng = random.Random(f'{config.seed}/{seed}/{i}')
    ids, places = [tokenizers.BOS], []
    while len(ids) < len(row):
      document = rng.choice(rng.choice(kinds))
      new = tokenizer.encode(document.text + BETWEEN)
      begins = _alike(new, tokenizer.encode(document.prompt))
      if not document.answer:
        begins = 0
      if len(ids) > 1 or not config.shots:
        # The token that ends the answer is one to be said too.
        places += range(len(ids) + begins - 1, len(ids) + len(new) - 1)
      ids += new
    row[:] = ids[: len(row)]
    found.append([place for place in places if place < len(row) - 1])
  return Rows(tokens, *padded(found))


def padded(found: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
  """Places of rows, as many for each, and which of them count."""
  most = max(map(len, found))
  places = np.zeros((len(found), most), np.int32)
  for row, some in zip(places, found, strict=True):
    row[: len(some)] = some
    row[len(some) :] = some[-1] if some else 0
  counts = np.arange(most) < np.array([[len(some)] for some in found])
  return places, counts


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
  """How many tokens two texts begin with alike."""
  same = (a == b for a, b in zip(one, other, strict=False))
  return sum(itertools.takewhile(bool, same))


def vocabulary(
  kinds: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  most: int,
  always: Sequence[int],
) -> np.ndarray:
  """The most frequent tokens of answers, upwards.

  Args:
    kinds: Sets of documents, each of as much weight as the others; one without
      an answer counts as a whole.
    tokenizer: The verifier's.
    most: How many tokens.
    always: Ids that are among them in any case.
  """
  shares: dict[int, float] = collections.defaultdict(float)
  for kind in kinds:
    said = collections.Counter(
      token
      for document in kind
      for token in tokenizer.encode(document.answer or document.prompt)
    )
    for token, count in said.items():
      shares[token] += count / said.total()
  left = {
    token: share for token, share in shares.items() if token not in always
  }
  # Of two as frequent, the lower id.
  order = sorted(left, key=lambda token: (-left[token], token))
  return np.sort(np.array([*always, *order[: most - len(always)]], np.int32))


def kept(file: pathlib.Path, prompts: Sequence[str], answer: Any) -> list[str]:
  """Answers to prompts, from a file as far as they are there.

  Args:
    file: Holds a JSON string a line, in the order of the prompts.
    prompts: To be answered.
    answer: From some prompts, and the number of the first, to their answers.
  """
  done: list[str] = []
  if file.exists():
    # The last may be half a line, of a run that was stopped.
    for line in bounded.read_lines(file, lambda _, why: ValueError(why)):
      try:
        text = bounded.parse_json(line)
      except ValueError:
        break
      if not isinstance(text, str):
        break
      done.append(text)
    if len(done) < len(prompts):
      # Those of a group have a seed together, and are written together.
      del done[len(done) // AT_A_TIME * AT_A_TIME :]
    text = ''.join(json.dumps(x) + '\n' for x in done)
    records.write_text(file, text)
  with (
    atomic.name_path_in_errors(file),
    file.open('a', encoding='utf-8') as out,
  ):
    while len(done) < len(prompts):
      some = prompts[len(done) : len(done) + AT_A_TIME]
      for text in answer(some, len(done)):
        done.append(text)
        out.write(json.dumps(text) + '\n')
      out.flush()
  return done[: len(prompts)]
