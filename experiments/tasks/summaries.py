"""News articles and their summaries: CNN/DailyMail and XSum, by ROUGE.

- `cnn_dailymail` 3.0.0, not anonymised (Hermann et al. 2015, arXiv 1506.03340;
  See et al. 2017, arXiv 1704.04368): a few highlights, a line each. The code
  that makes it is Apache-2.0, the articles belong to the papers.
- `xsum` (Narayan et al. 2018, arXiv 1808.08745): one sentence. Its code is MIT,
  the articles belong to the BBC.

The authors publish a file per article; the table on the hub is used instead. A
file is that table: `.parquet` as on the hub, or the same columns as `.csv` or
as a JSON object a line (`article`, `highlights` and `id`; `document`, `summary`
and `id`).

Scores are ROUGE F-measures in [0, 1] (Lin 2004) by Google's rouge-score, with
stemming.
"""

from experiments.tasks.sources import Source, get_text
from experiments.tasks.task import Task, published_task


def _question(article: str) -> str:
  return f'Article: {article}\nSummary:'


def _task(name, source, article, summary, pairs, **fields) -> Task:
  """Returns a task of articles and summaries in the columns given."""

  def problem(row, number):
    question = _question(get_text(row, article))
    return get_text(row, 'id'), question, get_text(row, summary)

  return published_task(
    name,
    source,
    problem,
    metrics=('rouge',),
    worked_examples=tuple((_question(text), short) for text, short in pairs),
    shots=1,
    **fields,
  )


# Written for this project; the events are fictional.
_FERRY = (
  'The night ferry between Aldvik and Sorn will sail again from May, its owner'
  ' said on Tuesday, two years after a fire in the engine room put an end to'
  ' it. The ship has been given electric engines and will take forty minutes'
  ' longer than before. "We lose a little time and all of the noise," captain'
  ' Ingrid Hauge told reporters on board. A ticket will cost 35 crowns, five'
  ' more than it used to. People on Sorn had collected 8,000 signatures for the'
  ' ferry, which is the only way to reach the island in winter, when its'
  ' airfield is closed.'
)
_LIBRARY = (
  'For three weeks, a wall between the reading room and the cellar kept the'
  ' builders of Harlow Bridge guessing: it was four feet thicker on the plans'
  ' than it had any reason to be. On Friday they opened it.\nBehind the bricks'
  ' stood a shelf with 212 books, the youngest of them printed in 1911.'
  ' Librarian Tom Achebe believes that they were walled in to save them from a'
  ' flood, and were then forgotten. None has been damaged. The library means to'
  ' show them from next month on.'
)

TASKS = (
  _task(
    'cnn_dailymail',
    Source(
      download=(
        'the test table (3.0.0) of huggingface.co/datasets/abisee/cnn_dailymail'
      ),
      hub='abisee/cnn_dailymail',
      config='3.0.0',
    ),
    article='article',
    summary='highlights',
    pairs=(
      (
        _FERRY,
        'Ferry between Aldvik and Sorn sails again from May after a fire two'
        ' years ago .\nIt now has electric engines and takes 40 minutes longer'
        ' .\nIslanders had collected 8,000 signatures .',
      ),
    ),
    stop_strings=('\n\n', '\nArticle:'),
    max_new_tokens=160,
  ),
  _task(
    'xsum',
    Source(
      download='the test table of huggingface.co/datasets/EdinburghNLP/xsum',
      hub='EdinburghNLP/xsum',
      # Where the hub keeps a table of what a script would have to make.
      revision='refs/convert/parquet',
    ),
    article='document',
    summary='summary',
    pairs=(
      (
        _LIBRARY,
        'Builders at a library have found more than 200 books that had been'
        ' walled in for over a century.',
      ),
    ),
    stop_strings=('\n',),
    max_new_tokens=96,
  ),
)
