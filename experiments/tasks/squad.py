"""SQuAD 2.0: questions on a passage, half of them without an answer in it.

Rajpurkar et al. 2018, arXiv 1806.03822; CC BY-SA 4.0. The file is
`dev-v2.0.json` of rajpurkar.github.io/SQuAD-explorer: the answers of the test
set are secret, and results are published on the development set.

A question without an answer wants the word `unanswerable`, as the worked
examples show, and nothing else. (The official script takes an empty answer for
it, which a language model would give by saying nothing at all.)
"""

from experiments.tasks import short_answers
from experiments.tasks.sources import (
  DamagedError,
  Source,
  at,
  read_json,
  rows_in,
  take,
  take_text,
  take_texts,
)
from experiments.tasks.task import Reference, benchmark

UNANSWERABLE = 'unanswerable'


def _read(path):
  """Rows as the hub has them, of articles that hold paragraphs."""
  for article_at, article in rows_in(str(path), read_json(path), 'data'):
    for place, paragraph in rows_in(article_at, article, 'paragraphs'):
      with at(place):
        context = take(paragraph, 'context')
      for row_at, row in rows_in(place, paragraph, 'qas'):
        with at(row_at):
          texts = [take(a, 'text') for a in take(row, 'answers', list)]
          if take(row, 'is_impossible', bool) == bool(texts):
            raise DamagedError("has 'answers' that contradict 'is_impossible'")
        yield row_at, {**row, 'context': context, 'answers': {'text': texts}}


def _ask(context: str, question: str) -> str:
  return f'Passage: {context}\nQuestion: {question}\nAnswer:'


def _problem(row, number):
  question = _ask(take_text(row, 'context'), take_text(row, 'question'))
  answers = take_texts(take(row, 'answers', dict), 'text')
  return take_text(row, 'id'), question, answers or UNANSWERABLE


def score(answer: str, reference: Reference) -> dict[str, float]:
  """SQuAD's F1 and exact match; half of `unanswerable` is nothing."""
  exact = short_answers.exact_match(answer, reference)
  overlap = short_answers.f1(answer, reference)
  return {
    'f1': exact if reference == UNANSWERABLE else overlap,
    'exact_match': exact,
  }


_LIGHTHOUSE = (
  'The lighthouse on Gull Rock was built between 1871 and 1874 from granite'
  ' that had been shipped from the mainland. Its first keeper, Agnes Moreau,'
  ' lived there with two goats for nineteen years. A storm put out the lamp in'
  ' 1902, and since 1958 it has been lit by electricity.'
)
_ORCHARD = (
  'Orchards in the valley grow mostly pears. They are picked in September, and'
  ' most of them are dried on wooden racks, which takes about eight days. The'
  ' dried fruit is sold in paper bags at the market in Lindau.'
)
# Written for this project.
_WORKED = (
  (_LIGHTHOUSE, "Who was the lighthouse's first keeper?", 'Agnes Moreau'),
  (_LIGHTHOUSE, 'How many ships were lost in the storm?', UNANSWERABLE),
  (_ORCHARD, 'How long does it take to dry pears?', 'about eight days'),
  (_ORCHARD, 'Who invented the wooden racks?', UNANSWERABLE),
)

TASK = benchmark(
  'squad_v2',
  Source(
    get='dev-v2.0.json of rajpurkar.github.io/SQuAD-explorer',
    read=_read,
    hub='rajpurkar/squad_v2',
    splits={'train': 'train', 'test': 'validation'},
  ),
  _problem,
  score=score,
  metric='f1',
  worked=tuple((_ask(*asked), said) for *asked, said in _WORKED),
  shots=2,
  stops=('\n',),
  max_new_tokens=48,
)
