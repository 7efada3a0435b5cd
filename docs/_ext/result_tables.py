"""Tables of results that are made of the figures of their folders.

Command: python -m docs._ext.result_tables
Writes: the tables of `TABLES`, below experiments/results

A test compares each table with the figures. All other tables of these folders
were written by the report of their run, from records that are not kept here.
"""

import functools
import json
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments import escapes
from experiments.benchmarks import answering, eight_bits, harness, loops
from experiments.benchmarks.harness import median
from experiments.records import metrics
from experiments.reports import styles, tables
from experiments.reports.tables import RATIO, SCORE, Column

RESULTS = pathlib.Path(__file__).parents[2] / 'experiments/results'
_COLUMNS = (
  tables.LENIENCE,
  Column('quality', 'Exact match (95 % interval)', SCORE, ''),
  Column('rejection_rate', 'Rejection rate', RATIO, ''),
  Column('block_efficiency', 'Block efficiency', RATIO, ''),
  Column('relative_latency', 'Modelled latency', RATIO, ''),
)
# Labels of drafters and loops whose names in the config say too little.
_DRAFTERS = {
  'none': 'none: the verifier alone',
  'model': 'a smaller model',
  'model, stops': 'model, stops when unsure',
  'own layers': "the verifier's first 2 layers",
  'n-gram': 'n-grams of the text',
}
_LOOPS = {
  'alone': 'cascades, verifier alone',
  'strict': 'cascades, strict, trained drafter',
  'n-gram': 'cascades, strict, n-grams',
  'gemma': "gemma's sampler, verifier alone",
  'transformers, plain': 'transformers, verifier alone',
  'transformers, assisted': 'transformers, the same drafter',
  'transformers, look-up': 'transformers, n-grams',
  'llama.cpp, plain': 'llama.cpp, verifier alone, 4-bit weights',
}

# Labels of measures that are BLEU.
_DISTANCES = {
  'quality, floats': 'BLEU, float32',
  'quality, int8': 'BLEU, int8',
  'difference': 'BLEU difference, int8 less float32',
}
_ENTRANTS = {
  'alone': 'verifier alone',
  'strict': 'strict decoding',
  'llama.cpp, plain': 'llama.cpp on the same file, verifier alone',
}


def points(folder: str, title: str, *picks: str) -> str:
  """Returns a table of selected points of word problems.

  Args:
    folder: Folder of summary.csv.
    title: Title above the table.
    *picks: A curve and a lenience each, such as 'token_v3 block 0.5'; of a
      curve at several gammas the fastest is shown.
  """
  frame = pd.read_csv(RESULTS / folder / 'summary.csv')
  frame['variant'] = metrics.variants(frame)
  frame = frame[frame.task == 'word_problems'].sort_values('relative_latency')
  title = f'{title}, {frame.n.max()} examples'
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
  curve_styles = styles.styles(
    dict(zip(selected.variant, selected.method, strict=True))
  )
  return tables.markdown(
    tables.Table('points', title, selected, shown), curve_styles
  )


def _figures(folder: str) -> harness.Figures:
  """Reads the figures of a benchmark."""
  path = RESULTS / folder / 'benchmark.json'
  return json.loads(path.read_text(encoding='utf-8'))['figures']


def _table(title: str, head: Sequence[str], rows: Sequence[list[str]]) -> str:
  """Returns a table as Markdown, as reports write them."""
  rule = ['---', *['---:'] * (len(head) - 1)]
  lines = [f'| {" | ".join(cells)} |' for cells in (head, rule, *rows)]
  return f'**{title}**\n\n' + '\n'.join(lines) + '\n'


def _turns(row: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
  """Returns the ratio of two speeds, and its range over the turns.

  Args:
    row: Figure of an entrant.
    reference: Figure of the entrant in the denominator.
  """
  scale = row['tokens'] / reference['tokens']
  seconds = reference['decode_s'], row['decode_s']
  ratios = [scale * x / y for x, y in zip(*seconds, strict=True)]
  ratio = scale * median(seconds[0]) / median(seconds[1])
  return f'{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})'


def _number(value: float | None, decimals: int = 2) -> str:
  """Formats a number; None as a dash."""
  return styles.number(math.nan if value is None else value, decimals)


def _targets(thresholds: Sequence[tuple[str, ...]]) -> str:
  """Returns a paragraph on the targets of a benchmark."""
  missed = [
    f'{name} (target {bound}, measured {ratio})'
    for name, bound, ratio, verdict in thresholds
    if verdict != 'yes'
  ]
  met = len(thresholds) - len(missed)
  text = f'{met} of {len(thresholds)} targets of the benchmark are met.'
  if missed:
    text += f' Not met: {"; ".join(missed)}.'
  return f'\n{escapes.for_html(text)}\n'


def fastest(folder: str) -> str:
  """Returns a table of strict decoding at its fastest gamma."""
  timed = [row for row in _figures(folder) if 'decode_s' in row]
  derived = loops.rows(_figures(folder))
  entrants = list(zip(timed, derived, strict=True))
  rows = []
  for pair, batch in dict.fromkeys((x['pair'], x['batch']) for x in timed):
    group = [
      x for x in entrants if (x[0]['pair'], x[0]['batch']) == (pair, batch)
    ]
    row, best = max(
      (x for x in group if x[0]['arm'] == 'strict' and x[1]['over_floor']),
      key=lambda x: x[1]['tokens_per_s'],
    )
    gemma, alone = (
      next(x for x, _ in group if x['arm'] == arm) for arm in ('gemma', 'alone')
    )
    floor = next(
      x for x, _ in group if x['arm'] == 'floor' and x['gamma'] == row['gamma']
    )
    blocks = {'tokens': row['blocks']}
    rows.append(
      [
        f'{pair}, {batch}',
        _number(row['gamma'], 0),
        _number(best['acceptance']),
        _number(best['tokens_per_s'], 0),
        _turns(row, gemma),
        _turns(row, alone),
        _turns(floor | blocks, row | blocks),
      ]
    )
  return _table(
    'Measured speed of strict decoding at its fastest gamma, greedy;'
    ' in parentheses the range over all repeats',
    [
      'Verifier, prompts at a time',
      'Gamma',
      'Acceptance rate',
      'Tokens per second',
      "Speed-up over gemma's sampler",
      'Speed-up over the verifier alone',
      'Time / time of its forward passes',
    ],
    rows,
  ) + _targets(loops.thresholds(_figures(folder)))


def _answers(folder: str) -> list[tuple[dict, dict, dict]]:
  """Returns entrants that answered prompts.

  Returns:
    For each entrant its figure, the figure of the verifier alone, and its row
    of `answering.rows`.
  """
  figures = _figures(folder)
  derived, answers, firsts = answering.rows(figures), [], {}
  timed = [x for x in figures if x['part'] in ('problems', 'copies')]
  for figure, row in zip(timed, derived, strict=True):
    group = tuple(figure.get(x) for x in ('part', 'dtype', 'batch'))
    answers.append((figure, firsts.setdefault(group, figure), row))
  return answers


def drafters(folder: str) -> str:
  """Returns a table of kinds of drafters."""
  rows = [
    [
      _DRAFTERS.get(row['arm'], row['arm']),
      row['part'],
      _number(row['drafts'] if row['gamma'] else None, 0),
      _number(row['acceptance']),
      _number(row['tokens_per_call']),
      _number(row.get('latency')),
      _turns(figure, alone),
    ]
    for figure, alone, row in _answers(folder)
  ]
  return _table(
    'Strict decoding with several drafters, one prompt at a time;'
    ' in parentheses the range over five repeats',
    [
      'Drafter',
      'Prompts',
      'Drafts per block',
      'Acceptance rate',
      'Block efficiency',
      'Modelled latency',
      'Measured speed-up over the verifier alone',
    ],
    rows,
  )


def speeds(folder: str) -> str:
  """Returns a table of loops by dtype and batch size."""
  cells: dict[tuple[str, str], dict[str, str]] = {}
  heads: dict[str, None] = {}
  for figure, alone, row in _answers(folder):
    head = f'{row["dtype"]}, {row["batch"]}'
    heads[head] = None
    arm, part = _LOOPS.get(row['arm'], row['arm']), row['part']
    if figure is alone:
      cell, arm = f'{row["tokens_per_s"]:.1f} tokens/s', f'{arm}: speed'
    else:
      cell = _turns(figure, alone)
    cells.setdefault((part, arm), {})[head] = cell
  return _table(
    'Measured speed-up over cascades with the verifier alone, by dtype and'
    ' prompts at a time; in parentheses the range over five repeats',
    ['Library', 'Prompts', *heads],
    [
      [arm, part, *(by_head.get(head, styles.DASH) for head in heads)]
      for (part, arm), by_head in cells.items()
    ],
  ) + _targets(answering.thresholds(_figures(folder)))


def _distance(name: str, *values: str) -> list[str]:
  """Returns a row on the distance of int8; BLEU has one decimal."""
  if name not in _DISTANCES:
    return [name, *values]

  def rounded(match: re.Match) -> str:
    return styles.number(float(match[0]), 1)

  return [_DISTANCES[name], *(re.sub(r'[-.\d]+', rounded, x) for x in values)]


def int8(folder: str) -> str:
  """Returns the tables of a model in eight bits and of the same in floats."""
  figures = _figures(folder)
  passes, answers, _, distance = eight_bits.tables(figures)
  return '\n'.join(
    [
      _table(
        'Time of a forward pass of the verifier',
        ['Dtype', 'Tokens per pass', 'Time, ms'],
        passes[1:],
      ),
      _table(
        'Measured speed on greedy captions',
        [
          'Decoding',
          'Dtype',
          'Prompts at a time',
          'Tokens per second',
          'Speed-up over float32',
        ],
        [[_ENTRANTS.get(name, name), *cells] for name, *cells in answers[1:]],
      ),
      _table(
        'Int8 compared with float32',
        ['Measure', 'Value', '95 % interval'],
        [_distance(*cells) for cells in distance[1:]],
      )
      + _targets(eight_bits.thresholds(figures)),
    ]
  )


_MODELS = 'verifier_only', 'drafter_only', 'speed 0'
_RULES = (
  *(*_MODELS, 'token_v3 0.95', 'token_v3 0.9', 'token_v2 0.7', 'token_v1 0'),
  *('opt 0.2', 'diff 0.1', 'speed 0.95', 'chow 0.4'),
)
# Tables by their paths below `RESULTS`.
TABLES: dict[str, Callable[[], str]] = {
  'quickstart/points.md': functools.partial(
    points, 'quickstart', 'Word problems, temperature 1', *_RULES
  ),
  'quickstart_greedy/points.md': functools.partial(
    points, 'quickstart_greedy', 'Word problems, greedy', *_RULES
  ),
  'benchmark/fastest.md': functools.partial(fastest, 'benchmark'),
  'benchmark_drafters/drafters.md': functools.partial(
    drafters, 'benchmark_drafters'
  ),
  'benchmark_int8/eight_bits.md': functools.partial(int8, 'benchmark_int8'),
  'benchmark_270m/speeds.md': functools.partial(speeds, 'benchmark_270m'),
}


if __name__ == '__main__':
  for name, make in TABLES.items():
    (RESULTS / name).write_text(make(), encoding='utf-8')
    print(RESULTS / name)
