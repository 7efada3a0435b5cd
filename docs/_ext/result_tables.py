"""Tables of results that are made of the figures of their folders.

Command: python -m docs._ext.result_tables
Writes: the tables of `TABLES`, below experiments/results

A test compares each table with the figures; the board keeps the rows that it
has. All other tables of these folders were written when they were measured.
"""

import csv
import functools
import io
import json
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from experiments.measuring import median
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


# Loops by the names of their figures.
_LOOPS = {
  'alone': 'cascades, verifier alone',
  'strict': 'cascades, strict',
  'TokenV3': 'cascades, TokenV3 at 0.8, lossy',
  'strict, one layer': 'cascades, strict, drafter of one layer',
  'n-gram': 'cascades, strict, n-grams',
  'gemma': "gemma's sampler, verifier alone",
  'transformers, plain': 'transformers, verifier alone',
  'transformers, assisted': 'transformers, the same drafter',
  'transformers, look-up': 'transformers, n-grams',
  'llama.cpp, plain': 'llama.cpp, verifier alone, 4-bit file',
  'llama.cpp, assisted': 'llama.cpp, the same drafter, 4-bit file',
  'llama.cpp, n-grams': 'llama.cpp, n-grams, 4-bit file',
}
# Models of the board by the folders of their benchmarks.
_BENCHMARKS = {
  'benchmark': 'bundled',
  'benchmark_270m': 'Gemma 3 270M',
  'benchmark_board': 'Gemma 3 270M',
}
# Dtypes and prompts at a time, a column each.
_DTYPES_AND_PROMPTS = ('float32', 1), ('float32', 8), ('int8', 1), ('int8', 8)


def _speeds(output: dict) -> dict[str, dict[tuple[str, int], float]]:
  """Returns the tokens a second of each loop, by dtype and prompts."""
  speeds: dict[str, dict[tuple[str, int], float]] = {}
  for row in output['figures']:
    is_timed = row.get('part') == 'problems' or row.get('pair') == 'bundled'
    if is_timed and row['arm'] in _LOOPS and 'tokens' in row:
      of_loop = speeds.setdefault(row['arm'], {})
      key = row.get('dtype', 'float32'), row['batch']
      speed = row['tokens'] / median(row['decode_s'])
      # The fastest of several gammas.
      of_loop[key] = max(speed, of_loop.get(key, 0))
  return speeds


def _rows(folder: str) -> Iterator[str]:
  """Yields a line for each loop of a benchmark."""
  text = (RESULTS / folder / 'benchmark.json').read_text(encoding='utf-8')
  output = json.loads(text)
  start = output['starts'][-1]
  machine = f'{output["device"]}, {output["cores"]} cores'
  speeds = _speeds(output)
  for arm, of_loop in speeds.items():
    cells = []
    for key in _DTYPES_AND_PROMPTS:
      speed = of_loop.get(key, np.nan)
      alone = speeds['alone'].get(key, np.nan)
      cell = f'{speed:.0f} ({speed / alone:.2f})'
      cells.append(tables.DASH if np.isnan(speed) else cell)
    fields = (
      _LOOPS[arm],
      _BENCHMARKS[folder],
      *cells,
      machine,
      start['started'][:10],
    )
    yield f'| {" | ".join([*fields, start["commit"][:8]])} |'


def board() -> str:
  """Returns the board with a row for each loop that it does not have yet."""
  page = (RESULTS / 'board.md').read_text(encoding='utf-8')
  table = page[page.index('| loop |') :].partition('\n\n')[0]
  new = [x for folder in _BENCHMARKS for x in _rows(folder) if x not in table]
  return page.replace(table, '\n'.join([table, *new]))


def speeds(folder: str) -> str:
  """Returns a table of loops by dtype and prompts at a time, as CSV.

  A cell has the ratio of medians to the verifier alone, and the range of the
  ratios of turns; of the verifier alone it has the tokens a second.
  """
  path = RESULTS / folder / 'benchmark.json'
  figures = json.loads(path.read_text(encoding='utf-8'))['figures']
  alone, cells, names = {}, {}, {'problems': '', 'copies': ', copies'}
  for row in figures:
    key = row['dtype'], row['batch']
    turns = row['tokens'] / np.array(row['decode_s'])
    first = alone.setdefault((row['part'], *key), turns)
    ratios = turns / first
    middle = np.median(turns) / np.median(first)
    texts = [*map(RATIO, (middle, ratios.min(), ratios.max()))]
    text = f'{texts[0]} ({texts[1]} to {texts[2]})'
    if first is turns:
      text = f'{np.median(turns):.1f} tokens/s'
    name = _LOOPS[row['arm']] + names[row['part']]
    cells.setdefault(name, {})[f'{key[0]}, {key[1]}'] = text
  frame = pd.DataFrame.from_dict(cells, 'index')
  frame = frame.rename_axis('Loop').fillna(tables.DASH).reset_index()
  return frame.to_csv(index=False, lineterminator='\n')


_MODELS = 'verifier_only', 'drafter_only', 'speed 0'
_RULES = (
  *(*_MODELS, 'token_v3 0.95', 'token_v3 0.9', 'token_v2 0.7', 'token_v1 0'),
  *('opt 0.2', 'diff 0.1', 'speed 0.95', 'chow 0.4'),
)
# Tables by their paths below `RESULTS`.
TABLES: dict[str, Callable[[], str]] = {
  f'{folder}/points.csv': functools.partial(points, folder, *_RULES)
  for folder in ('quickstart', 'quickstart_greedy')
} | {
  'board.md': board,
  'benchmark_board/speeds.csv': functools.partial(speeds, 'benchmark_board'),
}


if __name__ == '__main__':
  for name, make in TABLES.items():
    (RESULTS / name).write_text(make(), encoding='utf-8')
    print(RESULTS / name)
