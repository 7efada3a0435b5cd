"""Two points of a sweep that are named on the command line, compared.

A point is written `VARIANT@LENIENCE@GAMMA`, such as `token_v3@0.95@12`; the
gamma may be left out where there is one, the lenience where there is none.
"""

import dataclasses
import math
from collections.abc import Sequence

from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.records import Record

_ORACLE = '; the modelled latency leaves out calls that an oracle needs'


def _names(variant: str, lenience: float, gamma: int) -> list[str]:
  """Returns what a point may be called, the longest name last."""
  name = variant
  if not math.isnan(lenience):
    name += '@' + repr(float(lenience)).removesuffix('.0')
  return [name, f'{name}@{gamma}'] if gamma else [name]


def _names_of(record: Record) -> list[str]:
  return _names(record.variant, record.lenience, runs.block_gamma(record))


def _find(name: str, records: Sequence[Record]) -> str:
  """Returns the longest name of the point that a name stands for."""
  names = [_names_of(record) for record in records]
  matches = dict.fromkeys(x[-1] for x in names if name.strip() in x)
  if len(matches) == 1:
    return next(iter(matches))
  reason = 'stands for several points' if matches else 'is not a point'
  rest = ', '.join(matches or dict.fromkeys(x[-1] for x in names))
  raise ValueError(f'compare: {name!r} {reason}; choose from {rest}.')


def _interval(scores: dict[str, float], name: str, number: str) -> str:
  names = comparisons.with_ends(name)
  value, low, high = (number.format(scores[x]) for x in names)
  return f'{value} [{low}, {high}]'


def _difference(names: Sequence[str], scores: dict[str, float]) -> str:
  speed = _interval(scores, 'faster', '{:.2f}')
  text = (
    f'{names[0]} is {speed} times as fast as {names[1]} by modelled latency'
  )
  # A task may measure speed alone.
  if math.isnan(scores['gained']):
    return text
  quality = _interval(scores, 'gained', '{:+.3f}')
  return f'{text}, with a quality difference of {quality}'


def compare(
  contents: Sequence[runs.Run], named: Sequence[str], config: AnalysisConfig
) -> list[str]:
  """Compares two points on the examples that both answered."""
  records = [
    record
    for run in contents
    for answers in run.records.values()
    for record in answers
  ]
  full = [_find(name, records) for name in named]
  if len(named) != 2 or full[0] == full[1]:
    raise ValueError(
      'compare: needs two points with a comma between them, such as'
      ' token_v3@0.95,speed@0.'
    )
  points = runs.gather(
    [
      dataclasses.replace(
        run,
        records={
          file: [record for record in answers if _names_of(record)[-1] in full]
          for file, answers in run.records.items()
        },
      )
      for run in contents
    ]
  )
  sentences = []
  for _, part in points.table.groupby(runs.GROUP, sort=False):
    columns = zip(part.variant, part.lenience, part.gamma, strict=True)
    names = [_names(*values)[-1] for values in columns]
    rows = dict(zip(names, part.index, strict=True))
    if len(rows) < len(part):
      raise ValueError(
        f'compare: several workdirs have {full[0]} or {full[1]}; name the'
        ' workdir of one of them.'
      )
    if len(rows) < 2 or not part.n.all():
      continue
    scores = comparisons.pair(points, rows[full[0]], rows[full[1]], config)
    if not scores['n']:
      continue
    sentences.append(
      f'{part.task.iloc[0]} at temperature {part.temperature.iloc[0]:g},'
      f' {scores["n"]} examples: {_difference(full, scores)}'
      f'{_ORACLE if part.oracle.any() else ""} (paired 95 % intervals).'
    )
  if not sentences:
    raise ValueError(
      f'compare: no example was answered by both {full[0]} and {full[1]}; name'
      ' two points of one task and temperature.'
    )
  return sentences
