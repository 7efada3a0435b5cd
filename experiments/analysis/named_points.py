"""Two points named VARIANT@LENIENCE@GAMMA on the command line, compared."""

import dataclasses
from typing import Any

from experiments.analysis import comparisons, runs

_SPEED = '{faster:.2f} [{faster_low:.2f}, {faster_high:.2f}] times as fast'
_GAIN = ', quality gain {gained:+.3f} [{gained_low:+.3f}, {gained_high:+.3f}]'


def _name(point: Any) -> str:
  text = f'@{float(point.lenience)!r}'.removesuffix('.0').replace('@nan', '')
  return f'{point.variant}{text}@{runs.block_gamma(point)}'.removesuffix('@0')


def compare(contents: list[runs.Run], named: list[str], config: Any) -> list:
  """Compares two points, named by the beginnings of their names, by task."""
  parts = [part for run in contents for part in run.records.values()]
  names = sorted({_name(record) for part in parts for record in part})
  pair = [[x for x in names if f'{x}@'.startswith(f'{y}@')] for y in named]
  if [*map(len, pair)] != [1, 1] or pair[0] == pair[1]:
    raise ValueError(f'compare: must name two points of {", ".join(names)}.')
  selected, sentences, pair = [], list[str](), [*pair[0], *pair[1]]
  for run in contents:
    records = (x for part in run.records.values() for x in part)
    records = {'': [x for x in records if _name(x) in pair]}
    selected.append(dataclasses.replace(run, records=records))
  points = runs.gather(selected)
  for (task, heat), part in points.table.groupby(runs.GROUP, sort=False):
    rows = {_name(x): x.Index for x in part.itertuples()}
    if len(rows) == len(part) == 2 and part.n.all():
      scores = comparisons.pair(points, *map(rows.get, pair), config)
      gain = _GAIN if scores['gained'] == scores['gained'] else ''
      head = f'{task} at temperature {heat:g}, {{n}} examples: {pair[0]} is '
      text = f'{head}{_SPEED} as {pair[1]}{gain} (modelled latency, 95 %).'
      sentences += [text.format(**scores)] * (scores['n'] > 0)
  if not sentences:
    raise ValueError(
      f'compare: no task has {pair[0]} and {pair[1]}; name others.'
    )
  return sentences
