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

An answer is right if it equals one of those accepted, after SQuAD's
normalisation. A question for which a set knows no answer cannot be answered
right, and counts.
"""

import re

from experiments.tasks import short_answers
from experiments.tasks.sources import (
  DamagedError,
  Source,
  at,
  read_json,
  read_list,
  rows_in,
  take,
  take_text,
  take_texts,
)
from experiments.tasks.task import Reference, Task, ask, benchmark

_DESCRIPTION = re.compile(
  r'\(description (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^()"]*))\)'
)


def _read_web_questions(path):
  """Rows as the hub has them, with the answers in a list."""
  for place, row in read_list(path):
    with at(place):
      target = take_text(row, 'targetValue')
      if not target.startswith('(list'):
        raise DamagedError("has a 'targetValue' that is not '(list ...)'")
      answers = [
        (match['quoted'] or match['plain'] or '').replace('\\"', '"')
        for match in _DESCRIPTION.finditer(target)
      ]
      question = take_text(row, 'utterance')
    yield place, {'question': question, 'answers': answers}


def _read_trivia_qa(path):
  """Rows as the hub has them: `QuestionId` is `question_id` there."""
  for place, row in rows_in(str(path), read_json(path), 'Data'):
    yield place, _as_on_hub(row)


def _as_on_hub(value):
  if not isinstance(value, dict):
    return value
  return {
    re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower(): _as_on_hub(field)
    for name, field in value.items()
  }


def _listed(field: str):
  """Of rows with a question and a list of accepted answers."""

  def problem(row, number):
    question = ask(take_text(row, 'question'))
    return str(number), question, take_texts(row, field)

  return problem


def _trivia(row, number):
  answer = take(row, 'answer', dict)
  texts = (
    take_text(answer, 'value'),
    *take_texts(answer, 'aliases'),
    *take_texts(answer, 'normalized_aliases'),
  )
  # Many differ from the first of their kind in nothing that counts.
  different: dict[str, str] = {}
  for text in texts:
    different.setdefault(short_answers.normalise(text), text)
  question = ask(take_text(row, 'question'))
  return take_text(row, 'question_id'), question, tuple(different.values())


def _score(answer: str, reference: Reference) -> dict[str, float]:
  return {'exact_match': short_answers.exact_match(answer, reference)}


def _task(name: str, source: Source, problem, worked) -> Task:
  """A task of short questions with short answers."""
  return benchmark(
    name,
    source,
    problem,
    score=_score,
    metric='exact_match',
    worked=tuple((ask(question), answer) for question, answer in worked),
    shots=1,
    stops=('\n',),
    max_new_tokens=32,
  )


# The worked examples are written for this project, each in its set's style.
TASKS = (
  _task(
    'web_questions',
    Source(
      get='webquestions.examples.test.json of github.com/percyliang/sempre',
      read=_read_web_questions,
      hub='Stanford/web_questions',
    ),
    _listed('answers'),
    (
      ('what river flows through vienna?', 'Danube'),
      ('what language do they speak in brazil?', 'Portuguese'),
      ('what instrument did pablo casals play?', 'Cello'),
      ('where did roald amundsen come from?', 'Norway'),
    ),
  ),
  _task(
    'natural_questions',
    Source(
      get=(
        'NQ-open.dev.jsonl of'
        ' github.com/google-research-datasets/natural-questions'
      ),
      hub='google-research-datasets/nq_open',
      splits={'train': 'train', 'test': 'validation'},
    ),
    _listed('answer'),
    (
      ('what is the smallest planet in the solar system', 'Mercury'),
      ('how many strings does a violin have', 'four'),
      ('who wrote the novel frankenstein', 'Mary Shelley'),
      ('in which year did the berlin wall fall', '1989'),
    ),
  ),
  _task(
    'trivia_qa',
    Source(
      get=(
        'unfiltered-web-dev.json of triviaqa-unfiltered.tar.gz from'
        ' nlp.cs.washington.edu/triviaqa'
      ),
      read=_read_trivia_qa,
      hub='mandarjoshi/trivia_qa',
      config='unfiltered.nocontext',
      splits={'train': 'train', 'test': 'validation'},
    ),
    _trivia,
    (
      ('Which metal is liquid at room temperature?', 'Mercury'),
      ('Of which country is Reykjavik the capital?', 'Iceland'),
      ('How many squares does a chess board have?', '64'),
      ('Which painter cut off a part of his ear?', 'Vincent van Gogh'),
    ),
  ),
)
