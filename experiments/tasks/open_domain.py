"""Questions without a passage: WebQuestions, Natural Questions and TriviaQA.

- `web_questions` (Berant et al. 2013, EMNLP), no stated licence: a JSON list of
  objects with `utterance` and `targetValue`, the latter in the form
  `(list (description "A B") (description C))`.
- `natural_questions`, its open variant (Kwiatkowski et al. 2019; Lee et al.
  2019, arXiv 1906.00300), CC BY-SA 3.0: a line per question, with `question`
  and a list `answer`. There is no public test set.
- `trivia_qa` (Joshi et al. 2017, arXiv 1705.03551), Apache-2.0: `Data`, a list
  of objects with `QuestionId`, `Question` and `Answer`, whose `Aliases` and
  `NormalizedAliases` are accepted beside its `Value`. The answers of the test
  set are secret.

An answer is right if it equals an accepted answer after SQuAD's normalisation.
Questions without an accepted answer count as answered wrong.
"""

import re

from experiments.tasks import short_answers
from experiments.tasks.sources import (
  DamagedError,
  Source,
  error_location,
  get_field,
  get_text,
  get_texts,
  read_json,
  read_list,
  rows_in,
)
from experiments.tasks.task import Task, published_task, question_prompt

_DESCRIPTION = re.compile(
  r'\(description (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^()"]*))\)'
)


def _read_web_questions(path):
  """Yields rows in the hub's shape, with the answers in a list."""
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


def _read_trivia_qa(path):
  """Yields rows in the hub's shape: `QuestionId` becomes `question_id`."""
  for place, row in rows_in(str(path), read_json(path), 'Data'):
    yield place, _as_on_hub(row)


def _as_on_hub(value):
  if not isinstance(value, dict):
    return value
  return {
    re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower(): _as_on_hub(field)
    for name, field in value.items()
  }


def _question_with(field: str):
  """Returns a `Problem` of rows that list accepted answers in a field."""

  def problem(row, number):
    question = question_prompt(get_text(row, 'question'))
    return str(number), question, get_texts(row, field)

  return problem


def _trivia(row, number):
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
  question = question_prompt(get_text(row, 'question'))
  return get_text(row, 'question_id'), question, tuple(different.values())


def _task(name: str, source: Source, problem) -> Task:
  """Returns a task of short questions with short answers."""
  return published_task(
    name,
    source,
    problem,
    metrics=('short_answer',),
    shots=1,
    stop_strings=('\n',),
    max_new_tokens=32,
  )


TASKS = (
  _task(
    'web_questions',
    Source(
      download=(
        'webquestions.examples.test.json of github.com/percyliang/sempre'
      ),
      read=_read_web_questions,
      hub='Stanford/web_questions',
    ),
    _question_with('answers'),
  ),
  _task(
    'natural_questions',
    Source(
      download=(
        'NQ-open.dev.jsonl of'
        ' github.com/google-research-datasets/natural-questions'
      ),
      hub='google-research-datasets/nq_open',
      splits={'train': 'train', 'test': 'validation'},
    ),
    _question_with('answer'),
  ),
  _task(
    'trivia_qa',
    Source(
      download=(
        'unfiltered-web-dev.json of triviaqa-unfiltered.tar.gz from'
        ' nlp.cs.washington.edu/triviaqa'
      ),
      read=_read_trivia_qa,
      hub='mandarjoshi/trivia_qa',
      config='unfiltered.nocontext',
      splits={'train': 'train', 'test': 'validation'},
    ),
    _trivia,
  ),
)
