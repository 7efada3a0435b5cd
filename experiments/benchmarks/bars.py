"""What the loop is held to, and whether its figures come up to that."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmarks import digits, speedups


class Bar(NamedTuple):
  """A target.

  Attributes:
    name: What is measured.
    bound: What it may be at most or has to be at least, such as '<= 1.1'.
    found: What it is.
    met: Whether that is within the bound.
  """

  name: str
  bound: str
  found: str
  met: bool


def targets(figures: Sequence[dict[str, Any]]) -> list[Bar]:
  """All that the figures can be held to.

  Of several arms that a target is about, the worst counts, unless it says
  otherwise.

  Args:
    figures: All that is known; what was not measured has no target.
  """
  timed = speedups.rows(figures)
  found = []
  for pair in dict.fromkeys(row['pair'] for row in timed):
    mine = [row for row in timed if row['pair'] == pair]
    for batch in dict.fromkeys(row['batch'] for row in mine):
      found += _of_batch([row for row in mine if row['batch'] == batch])
    strict = [
      row for row in mine if row['arm'] == 'strict' and row['batch'] == 1
    ]
    if strict:
      found += _of_strict(strict)
  singles = {row['arm']: row for row in figures if 'decode_s' not in row}
  return [*found, *_of_singles(singles)]


def bar(
  name: str,
  sign: str,
  bound: float,
  value: float,
  places: int = 2,
  unit: str = '',
) -> Bar:
  """A target in words.

  Args:
    name: What is measured.
    sign: '<=' if it may not be more than the bound, or '>='.
    bound: The bound.
    value: What was found.
    places: How many digits of it are shown after the point.
    unit: What stands after both numbers.
  """
  met = value <= bound if sign == '<=' else value >= bound
  said = f'{value:.{places}f}{unit}'
  return Bar(name, f'{sign} {bound:g}{unit}', said, bool(met))


def _of_batch(timed: Sequence[dict[str, Any]]) -> Iterator[Bar]:
  """The arms of a pair at a batch size, against bare passes and gemma."""
  pair = timed[0]['pair']
  name = f'{pair}, batch {timed[0]["batch"]}'
  ratios = [row['over_floor'] for row in timed if 'over_floor' in row]
  bound = 1.25 if pair == 'bundled' else 1.1
  floor, median = f'{name}: loop time by its floor', float(np.median(ratios))
  yield bar(f'{floor}, median of gammas', '<=', bound, median)
  yield bar(f'{floor}, worst gamma', '<=', bound, max(ratios))
  alone = next(row for row in timed if row['arm'] == 'alone')
  yield bar(
    f'{name}: the verifier alone, by gemma', '>=', 1, alone['over_gemma']
  )


def _of_strict(strict: Sequence[dict[str, Any]]) -> Iterator[Bar]:
  """The strict arms of a pair at batch 1, against others and the formula."""
  pair = strict[0]['pair']
  best = max(strict, key=lambda row: row['tokens_per_s'])
  if pair == 'bundled':
    name = f'{pair}, batch 1: strict at gamma {best["gamma"]}, by'
    yield bar(f'{name} gemma', '>=', 2, best['over_gemma'])
    yield bar(f'{name} lock-step', '>=', 3, best['over_lock_step'])
  worst = min(strict, key=lambda row: row['over_formula'])
  name = f'{pair}, batch 1: speed-up by the formula'
  for which, row in (('best', best), ('worst', worst)):
    title = f'{name}, {which} gamma {row["gamma"]}'
    yield bar(title, '>=', 0.9, row['over_formula'])


def _of_singles(singles: dict[str, dict[str, Any]]) -> Iterator[Bar]:
  """What is measured once.

  Args:
    singles: Figures by their names; those that are missing are left out.
  """
  if row := singles.get('curve'):
    one_by_one, together = (
      digits.median(row[f'{way}_s']) for way in ('one_by_one', 'together')
    )
    name = f'a curve of {row["points"]} points, by so many calls'
    yield bar(name, '>=', 3, one_by_one / together)
  if row := singles.get('compile'):
    seconds = row['trace_s'] + row['compile_s']
    name = 'compiling the loop of a large pair'
    yield bar(name, '<=', 60, seconds, 0, ' s')
  if row := singles.get('memory'):
    # The two models' logits are 2; whatever else holds a block adds its own.
    more = row['twice_gamma_bytes'] - row['temporary_bytes']
    name = 'temporaries that a draft adds, in rows of batch x vocabulary'
    yield bar(name, '<=', 2.1, more / row['row_bytes'] / row['gamma'])
  if row := singles.get('compilation cache'):
    saved = row['second_s'] / row['first_s']
    yield bar('a second process by the first, cached', '<=', 1, saved)
