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


def _task(name, source, article, summary, **fields) -> Task:
  """Returns a task of articles and summaries in the columns given."""

  def problem(row, number):
    question = _question(get_text(row, article))
    return get_text(row, 'id'), question, get_text(row, summary)

  return published_task(
    name,
    source,
    problem,
    metrics=('rouge',),
    shots=1,
    **fields,
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
    stop_strings=('\n',),
    max_new_tokens=96,
  ),
)
