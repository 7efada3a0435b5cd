"""Rows of published sets that no template can read, and pairs of text files.

A function of fields prepares a row for the templates of its `TaskSpec`.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.tasks import short_answers
from experiments.tasks.final_numbers import MARK, marked_number
from experiments.tasks.sources import (
  DamagedError,
  Row,
  get_field,
  get_text,
  get_texts,
  read_lines,
)

_Fields = Mapping[str, Any]

# Categories of Spec-Bench that are not of MT-bench, which has its own.
_SPEC_BENCH_CATEGORIES = (
  *('translation', 'summarization', 'qa', 'math_reasoning', 'rag'),
)
_LANGUAGES = 'en', 'de'


def gsm8k_fields(row: _Fields) -> _Fields:
  """Returns a problem and its solution, which marks a number."""
  fields = {name: get_text(row, name) for name in ('question', 'answer')}
  if marked_number(fields['answer']) is None:
    raise DamagedError(f"has an 'answer' without a number after {MARK}")
  return fields


def trivia_qa_fields(row: _Fields) -> _Fields:
  """Returns a question and its answers, of which no two are one if normal."""
  answer = get_field(row, 'answer', dict)
  texts = (
    get_text(answer, 'value'),
    *get_texts(answer, 'aliases'),
    *get_texts(answer, 'normalized_aliases'),
  )
  # Most aliases have the normal form of another answer.
  different: dict[str, str] = {}
  for text in texts:
    different.setdefault(short_answers.normalise(text), text)
  return {**row, 'answers': [*different.values()]}


def pair_files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the two files of a translation, English first.

  They hold a sentence a line, `NAME.en` and `NAME.de`, or packed `NAME.en.gz`.
  Packed files are used where there are no plain ones.
  """
  stem = path.with_suffix('') if path.suffix == '.gz' else path
  if stem.suffix.removeprefix('.') in _LANGUAGES:
    stem = stem.with_suffix('')
  plain = [stem.with_name(f'{stem.name}.{end}') for end in _LANGUAGES]
  packed = [file.with_name(f'{file.name}.gz') for file in plain]
  return [
    b if b.exists() and not a.exists() else a
    for a, b in zip(plain, packed, strict=True)
  ]


def read_pairs(path: pathlib.Path) -> Iterator[Row]:
  """Yields pairs of sentences."""
  sides = [read_lines(file) for file in pair_files(path)]
  if len(sides[0]) != len(sides[1]):
    english, german = pair_files(path)
    raise DamagedError(
      f'{english} has {len(sides[0])} lines and {german} {len(sides[1])}'
    )
  for number, pair in enumerate(zip(*sides, strict=True), 1):
    yield f'{path}, line {number},', dict(zip(_LANGUAGES, pair, strict=True))


def spec_bench_fields(row: _Fields) -> _Fields:
  """Returns the first turn of a conversation, and an id with its category.

  A second turn depends on the answer to the first.
  """
  category, key = get_text(row, 'category'), get_field(row, 'question_id', int)
  turns = get_texts(row, 'turns')
  if not turns:
    raise DamagedError("has no text in 'turns'")
  group = category if category in _SPEC_BENCH_CATEGORIES else 'mt_bench'
  return {'id': f'{group}/{key}', 'question': turns[0]}
