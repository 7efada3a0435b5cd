"""Files of published sets whose rows no template can read.

A reader yields the rows of a file in the shape of the Hugging Face hub's. A
function of fields prepares a row for the templates of its `TaskSpec`.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.tasks import short_answers
from experiments.tasks.final_numbers import MARK, marked_number
from experiments.tasks.sources import (
  DamagedError,
  Row,
  error_location,
  get_field,
  get_text,
  get_texts,
  read_json,
  read_lines,
  read_list,
  rows_in,
)

_Fields = Mapping[str, Any]

# Categories of Spec-Bench that are not of MT-bench, which has its own.
SPEC_BENCH_CATEGORIES = (
  *('translation', 'summarization', 'qa', 'math_reasoning', 'rag'),
)
_LANGUAGES = 'en', 'de'
_DESCRIPTION = re.compile(
  r'\(description (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^()"]*))\)'
)


def gsm8k_fields(row: _Fields) -> _Fields:
  """Returns a problem and its solution, which marks a number."""
  fields = {name: get_text(row, name) for name in ('question', 'answer')}
  if marked_number(fields['answer']) is None:
    raise DamagedError(f"has an 'answer' without a number after {MARK}")
  return fields


def read_squad(path: pathlib.Path) -> Iterator[Row]:
  """Yields the questions of articles of paragraphs."""
  for article_location, article in rows_in(str(path), read_json(path), 'data'):
    for location, paragraph in rows_in(article_location, article, 'paragraphs'):
      with error_location(location):
        context = get_field(paragraph, 'context')
      for row_location, row in rows_in(location, paragraph, 'qas'):
        with error_location(row_location):
          answers = get_field(row, 'answers', list)
          texts = [get_field(answer, 'text') for answer in answers]
          if get_field(row, 'is_impossible', bool) == bool(texts):
            raise DamagedError("has 'answers' that contradict 'is_impossible'")
        fields = {**row, 'context': context, 'answers': {'text': texts}}
        yield row_location, fields


def read_web_questions(path: pathlib.Path) -> Iterator[Row]:
  """Yields questions with the answers of their `targetValue` in a list.

  It has the form `(list (description "A B") (description C))`.
  """
  for place, row in read_list(path):
    with error_location(place):
      target = get_text(row, 'targetValue')
      if not target.startswith('(list'):
        raise DamagedError("has a 'targetValue' that is not '(list ...)'")
      answers = [
        (match['quoted'] or match['plain'] or '').replace('\\"', '"')
        for match in _DESCRIPTION.finditer(target)
      ]
      question = get_text(row, 'utterance')
    yield place, {'question': question, 'answers': answers}


def read_trivia_qa(path: pathlib.Path) -> Iterator[Row]:
  """Yields questions with the hub's names: `QuestionId` is `question_id`."""
  for place, row in rows_in(str(path), read_json(path), 'Data'):
    yield place, _as_on_hub(row)


def _as_on_hub(value: Any) -> Any:
  if not isinstance(value, dict):
    return value
  return {
    re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower(): _as_on_hub(field)
    for name, field in value.items()
  }


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
  """Yields pairs of sentences, in the shapes of WMT and of Multi30k."""
  sides = [read_lines(file) for file in pair_files(path)]
  if len(sides[0]) != len(sides[1]):
    english, german = pair_files(path)
    raise DamagedError(
      f'{english} has {len(sides[0])} lines and {german} {len(sides[1])}'
    )
  for number, pair in enumerate(zip(*sides, strict=True), 1):
    row = dict(zip(_LANGUAGES, pair, strict=True))
    yield f'{path}, line {number},', {'translation': row, **row}


def spec_bench_fields(row: _Fields) -> _Fields:
  """Returns the first turn of a conversation, and an id with its category.

  A second turn depends on the answer to the first.
  """
  category, key = get_text(row, 'category'), get_field(row, 'question_id', int)
  turns = get_texts(row, 'turns')
  if not turns:
    raise DamagedError("has no text in 'turns'")
  group = category if category in SPEC_BENCH_CATEGORIES else 'mt_bench'
  return {'id': f'{group}/{key}', 'question': turns[0]}
