"""SQuAD 2.0: questions on a passage, half of them without an answer in it.

Rajpurkar et al. 2018, arXiv 1806.03822; CC BY-SA 4.0. The file is
`dev-v2.0.json` of rajpurkar.github.io/SQuAD-explorer: the answers of the test
set are secret, and results are published on the development set.

The reference of a question without an answer is the word `unanswerable`, as the
worked examples show. (The official script expects an empty answer there, which
a language model cannot tell from having nothing to say.)
"""

from experiments.tasks.answer_metrics import UNANSWERABLE
from experiments.tasks.sources import (
  DamagedError,
  Source,
  error_location,
  get_field,
  get_text,
  get_texts,
  read_json,
  rows_in,
)
from experiments.tasks.task import published_task


def _read(path):
  """Yields rows in the hub's shape from articles of paragraphs."""
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


def _question(context: str, question: str) -> str:
  return f'Passage: {context}\nQuestion: {question}\nAnswer:'


def _problem(row, number):
  question = _question(get_text(row, 'context'), get_text(row, 'question'))
  answers = get_texts(get_field(row, 'answers', dict), 'text')
  return get_text(row, 'id'), question, answers or UNANSWERABLE


TASK = published_task(
  'squad_v2',
  Source(
    download='dev-v2.0.json of rajpurkar.github.io/SQuAD-explorer',
    read=_read,
    hub='rajpurkar/squad_v2',
    splits={'train': 'train', 'test': 'validation'},
  ),
  _problem,
  metrics=('squad',),
  shots=2,
  stop_strings=('\n',),
  max_new_tokens=48,
)
