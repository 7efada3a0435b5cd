"""Training texts of drafters: documents of a user, and answers of the verifier.

A document is a prompt and its answer. Training rows are documents joined as in
few-shot prompts, so that the positions of a row are like those at which the
drafter is used.
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

from cascades.models import tokenizers
from experiments import records
from experiments.tasks import TASKS, Task
from experiments.tasks.answer_metrics import accepted_answers
from experiments.tasks.data_files import DataFile, as_text

# Prompts that are answered between two writes of the answers.
CHUNK_SIZE = 256
# Text between two documents.
SEPARATOR = '\n\n'


class Document(NamedTuple):
  """A prompt and its answer."""

  prompt: str
  answer: str

  @property
  def text(self) -> str:
    """The prompt followed by the answer."""
    return self.prompt + self.answer


def load_documents(config: ConfigDict) -> list[Document]:
  """Loads the documents of a config, shuffled by its seed."""
  if not config.text:
    raise ValueError(
      'text: no file of training texts is given; give --config.text=..., a file'
      ' with rows of prompt and answer, or of the published sets that'
      ' --config.tasks names.'
    )
  if config.tasks:
    documents = [
      # A question may have no accepted answer.
      Document(
        example.prompt, f' {(*accepted_answers(example.reference), "")[0]}'
      )
      for task in config.tasks
      for example in _published_task(task).load(
        split='train', path=config.text, shots=0, num_examples=None
      )
    ]
  else:
    documents = list(_read_documents(config.text))
  if len(documents) < 2 * config.held_out:
    raise ValueError(
      f'text: {config.text} has {len(documents)} documents; give'
      f' {2 * config.held_out} or more, since {config.held_out} are held out.'
    )
  random.Random(f'{config.seed}/documents').shuffle(documents)
  return documents


def _published_task(name: str) -> Task:
  """Returns the task of a published set; raises ValueError for others."""
  if name not in TASKS or not TASKS[name].source:
    names = [name for name, task in TASKS.items() if task.source]
    raise ValueError(
      f'tasks: must be published sets ({", ".join(names)}), got {name!r}.'
    )
  return TASKS[name]


def _read_documents(path: str) -> Iterator[Document]:
  """Yields the documents of a file of rows."""
  file = DataFile('text', path)
  for place, row in file.rows():
    reference = row.get('reference')
    references = reference if isinstance(reference, list) else [reference]
    prompt, answer, *references = (
      as_text('' if value is None else value)
      for value in (row.get('prompt'), row.get('answer'), *references)
    )
    if row.get('prompt') is None or None in (prompt, answer, *references):
      fault = 'must have a text as its prompt and its answer or reference'
      raise file.refusal(place, fault)
    # A space is between them, as in the worked examples of a sweep.
    accepted = (f' {text}' for text in references if text.strip())
    yield Document(prompt, answer or next(accepted, ''))


def few_shot_prompts(
  config: ConfigDict,
  documents: Sequence[Document],
  count: int,
  seed: str,
  *,
  allow_repeats: bool = True,
) -> list[tuple[str, Document]]:
  """Draws documents and puts worked examples before their prompts."""
  if len(documents) <= config.shots:
    raise ValueError(
      f'shots: {config.shots} examples and a prompt cannot be chosen from'
      f' {len(documents)} documents; give fewer shots, or more documents.'
    )
  rng = random.Random(f'{config.seed}/{seed}')
  prompts, indices = [], range(len(documents))
  used: set[int] = set()
  example_indices: list[int] = []
  for i in range(count):
    if i % CHUNK_SIZE == 0:
      # Many prompts share the examples, so that their cache is reused.
      example_indices = rng.sample(indices, config.shots)
    if len(used) + config.shots >= len(documents):
      used.clear()
    # A prompt that is also an example would contain its own answer.
    while (index := rng.choice(indices)) in example_indices or index in used:
      continue
    if not allow_repeats:
      used.add(index)
    examples = [documents[number].text for number in example_indices]
    document = documents[index]
    prompts.append((SEPARATOR.join([*examples, document.prompt]), document))
  return prompts


def held_out_prompts(config: ConfigDict) -> list[str]:
  """Returns the held-out prompts on which a drafter is evaluated."""
  held_out = load_documents(config)[: config.held_out]
  pairs = few_shot_prompts(
    config, held_out, config.eval_examples, 'held out', allow_repeats=False
  )
  return [prompt for prompt, _ in pairs]


class Rows(NamedTuple):
  """Training rows of joined documents, and the positions to train at.

  Attributes:
    tokens: Token ids, [rows, length]; a row begins with the begin-of-text id.
    positions: Positions before a token of an answer, [rows, N], ascending;
      shorter rows repeat their last position.
    mask: True for positions that are not padding, [rows, N].
  """

  tokens: np.ndarray
  positions: np.ndarray
  mask: np.ndarray


def pack_rows(
  config: ConfigDict,
  document_sets: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  count: int,
  seed: str,
) -> Rows:
  """Packs documents in random order into rows, each cut at its end.

  Positions are those of answers, which drafters write. All positions of a
  document without an answer are used; positions of a row's first document,
  which has no examples before it, are used only without `shots`.
  """
  tokens = np.zeros((count, config.row_length), np.int32)
  positions_by_row = []
  for i, row in enumerate(tokens):
    rng = random.Random(f'{config.seed}/{seed}/{i}')
    ids, positions = [tokenizers.BOS], []
    while len(ids) < len(row):
      document = rng.choice(rng.choice(document_sets))
      new = tokenizer.encode(document.text + SEPARATOR)
      start = _common_prefix_length(new, tokenizer.encode(document.prompt))
      if not document.answer:
        start = 0
      if len(ids) > 1 or not config.shots:
        # Includes the token after the answer, which ends it.
        positions += range(len(ids) + start - 1, len(ids) + len(new) - 1)
      ids += new
    row[:] = ids[: len(row)]
    positions_by_row.append([x for x in positions if x < len(row) - 1])
  return Rows(tokens, *pad_positions(positions_by_row))


def pad_positions(
  positions_by_row: Sequence[Sequence[int]],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns positions padded to one length, and their mask, [rows, N]."""
  length = max(map(len, positions_by_row))
  padded = np.zeros((len(positions_by_row), length), np.int32)
  for row, positions in zip(padded, positions_by_row, strict=True):
    row[: len(positions)] = positions
    row[len(positions) :] = positions[-1] if positions else 0
  counts = np.array([[len(positions)] for positions in positions_by_row])
  return padded, np.arange(length) < counts


def _common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
  """Returns the number of equal tokens that two sequences begin with."""
  is_same = (x == y for x, y in zip(a, b, strict=False))
  return sum(itertools.takewhile(bool, is_same))


def frequent_tokens(
  document_sets: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  count: int,
  required: Sequence[int],
) -> np.ndarray:
  """Returns the most frequent tokens of answers, ascending."""
  shares: dict[int, float] = collections.defaultdict(float)
  for documents in document_sets:
    token_counts = collections.Counter(
      token
      for document in documents
      for token in tokenizer.encode(document.answer or document.prompt)
    )
    for token, n in token_counts.items():
      shares[token] += n / token_counts.total()
  optional = {
    token: share for token, share in shares.items() if token not in required
  }
  # Of equally frequent tokens, the lower id comes first.
  order = sorted(optional, key=lambda token: (-optional[token], token))
  ids = [*required, *order[: count - len(required)]]
  return np.sort(np.array(ids, np.int32))


def resume_answers(
  file: pathlib.Path, prompts: Sequence[str], answer: Any
) -> list[str]:
  """Returns answers to prompts, reading those that a file has already."""
  answers = json.loads(file.read_text('utf-8')) if file.exists() else []
  while len(answers) < len(prompts):
    # A chunk has one seed, and is answered and written as a whole.
    first = len(answers) // CHUNK_SIZE * CHUNK_SIZE
    answers[first:] = answer(prompts[first : first + CHUNK_SIZE], first)
    records.write_text(file, json.dumps(answers))
  return answers[: len(prompts)]
