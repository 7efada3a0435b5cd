"""Two points of a sweep that are named on the command line, compared.

A point is written `VARIANT@LENIENCE@GAMMA`, such as `token_v3@0.95@12`; the
gamma may be left out where there is one, the lenience where there is none.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig


def _name(variant: str, lenience: float, gamma: int) -> str:
  named = '' if math.isnan(lenience) else f'@{float(lenience)!r}'
  return variant + named.removesuffix('.0') + (f'@{gamma}' if gamma else '')


def _name_of(record: Any) -> str:
  return _name(record.variant, record.lenience, runs.block_gamma(record))


def _find(text: str, names: Sequence[str]) -> str:
  matches = [x for x in names if f'{x}@'.startswith(f'{text.strip()}@')]
  if len(matches) == 1:
    return matches[0]
  reason = 'stands for several points' if matches else 'is not a point'
  rest = ', '.join(matches or names)
  raise ValueError(f'compare: {text!r} {reason}; choose from {rest}.')


def compare(
  contents: Sequence[runs.Run], named: Sequence[str], config: AnalysisConfig
) -> list[str]:
  """Compares two points on the examples that both answered."""
  answers = [
    x for run in contents for part in run.records.values() for x in part
  ]
  names = list(dict.fromkeys(map(_name_of, answers)))
  pair = [_find(text, names) for text in named]
  if len(pair) != 2 or pair[0] == pair[1]:
    raise ValueError(
      'compare: needs two points with a comma between them, such as'
      ' token_v3@0.95,speed@0.'
    )
  points = runs.gather(
    [
      dataclasses.replace(
        run,
        records={
          file: [record for record in part if _name_of(record) in pair]
          for file, part in run.records.items()
        },
      )
      for run in contents
    ]
  )
  sentences = []
  for (task, temperature), part in points.table.groupby(runs.GROUP, sort=False):
    rows = {_name(x.variant, x.lenience, x.gamma): x for x in part.itertuples()}
    if len(rows) < len(part):
      raise ValueError(
        f'compare: several workdirs have {pair[0]} or {pair[1]}; name the'
        ' workdir of one of them.'
      )
    if len(rows) < 2 or not part.n.all():
      continue
    index, reference = (rows[name].Index for name in pair)
    scores = comparisons.pair(points, index, reference, config)
    if not scores['n']:
      continue
    faster, gained = (
      '{:{f}} [{:{f}}, {:{f}}]'.format(
        *map(scores.get, comparisons.with_ends(name)), f=form
      )
      for name, form in (('faster', '.2f'), ('gained', '+.3f'))
    )
    text = (
      f'{task} at temperature {temperature:g}, {scores["n"]} examples:'
      f' {pair[0]} is {faster} times as fast as {pair[1]} by modelled latency'
    )
    # A task may measure speed alone.
    if not math.isnan(scores['gained']):
      text += f', with a quality difference of {gained}'
    if part.oracle.any():
      text += '; the modelled latency leaves out calls that an oracle needs'
    sentences.append(f'{text} (paired 95 % intervals).')
  if not sentences:
    raise ValueError(
      f'compare: no example was answered by both {pair[0]} and {pair[1]}; name'
      ' two points of one task and temperature.'
    )
  return sentences
