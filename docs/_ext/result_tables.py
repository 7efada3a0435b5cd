"""Tables of results that are made of the figures of their folders.

Command: python -m docs._ext.result_tables
Writes: the tables of `TABLES`, below experiments/results

A test compares each table with the figures. All other tables of these folders
were written when they were measured.
"""

import csv
import functools
import io
import pathlib
from collections.abc import Callable

import pandas as pd

from experiments.records import metrics
from experiments.reports import tables
from experiments.reports.tables import RATIO, SCORE, Column

RESULTS = pathlib.Path(__file__).parents[2] / 'experiments/results'
_COLUMNS = (
  tables.LENIENCE,
  Column('quality', 'Exact match (95 % interval)', SCORE),
  Column('rejection_rate', 'Rejection rate', RATIO),
  Column('block_efficiency', 'Block efficiency', RATIO),
  Column('relative_latency', 'Modelled latency', RATIO),
)


def points(folder: str, *picks: str) -> str:
  """Returns a table of selected points of word problems, as CSV.

  Args:
    folder: Folder of summary.csv.
    *picks: A curve and a lenience each, such as 'token_v3 block 0.5'; of a
      curve at several gammas the fastest is shown.
  """
  frame = pd.read_csv(RESULTS / folder / 'summary.csv')
  # Older results have drawn drafts alone.
  frame['draft'] = frame.get('draft', 'sample')
  frame['variant'] = metrics.variants(frame)
  frame = frame[frame.task == 'word_problems'].sort_values('relative_latency')
  rows = []
  for pick in picks:
    variant, _, lenience = pick.rpartition(' ')
    is_point = frame.variant == (variant or pick)
    if variant:
      is_point &= frame.lenience == float(lenience)
    if not is_point.any():
      raise ValueError(f'picks: summary.csv of {folder} has no point {pick!r}.')
    rows.append(frame[is_point].iloc[0])
  selected = pd.DataFrame(rows)
  shown = [*_COLUMNS]
  if frame.gamma.nunique() > 2:
    shown.insert(1, tables.GAMMA)
  curve_styles = tables.styles(
    dict(zip(selected.variant, selected.method, strict=True))
  )
  table = tables.Table('points', '', selected, shown)
  output = io.StringIO()
  writer = csv.writer(output, lineterminator='\n')
  writer.writerow([table.row_heading, *(column.heading for column in shown)])
  for name, cells in table.rows(curve_styles):
    texts = (f'{x.text} ({x.ends})' if x.ends else x.text for x in cells)
    writer.writerow([name, *texts])
  return output.getvalue()


_MODELS = 'verifier_only', 'drafter_only', 'speed 0'
_RULES = (
  *(*_MODELS, 'token_v3 0.95', 'token_v3 0.9', 'token_v2 0.7', 'token_v1 0'),
  *('opt 0.2', 'diff 0.1', 'speed 0.95', 'chow 0.4'),
)
# Tables by their paths below `RESULTS`.
TABLES: dict[str, Callable[[], str]] = {
  f'{folder}/points.csv': functools.partial(points, folder, *_RULES)
  for folder in ('quickstart', 'quickstart_greedy')
}


if __name__ == '__main__':
  for name, make in TABLES.items():
    (RESULTS / name).write_text(make(), encoding='utf-8')
    print(RESULTS / name)
