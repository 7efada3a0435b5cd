"""Certificates that a lossy engine is not worse than a base by a margin.

The verdict is that of the paired interval of the difference: *not worse*
if the lower end is above -margin, *worse* if the upper end is below. Otherwise
there are *too few rows*, fewer than certify a true difference of 0 with
probability .8, or the verdict is *undecided*.

The interval of a corpus score, by bootstrap, is at least as wide as if scores
were 0 or 1 and no answer differed: a bootstrap knows no change that did not
happen. The interval of a mean over tasks is made of theirs (Zou and Donner
2008). Its level is 95 %, or that at which Holm's procedure (1979) tests one of
several engines.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.comparisons import with_ends
from experiments.analysis.engine_answers import SIZES, Engine, Pairs
from experiments.records import stats

_LEVEL, _POWER = 0.95, 0.8
NOT_WORSE, WORSE = 'not worse', 'worse'


def interval(
  tasks: Sequence[Pairs], level: float = _LEVEL
) -> tuple[float, float, float]:
  """Computes the mean difference over tasks in shares, and its interval."""
  ends = np.array([_task_interval(x, level) for x in tasks])
  mean = float(ends[:, 0].mean())
  low, high = np.sqrt(((ends[:, 1:] - ends[:, :1]) ** 2).sum(0)) / len(tasks)
  return mean, mean - float(low), mean + float(high)


@functools.lru_cache(maxsize=256)
def _task_interval(pairs: Pairs, level: float) -> tuple[float, float, float]:
  base, lossy = pairs.scores[..., None]
  if pairs.sums is None:
    low, high = stats.paired_interval(lossy, base, level)
    return float(np.mean(lossy - base)), float(low[0]), float(high[0])

  def score(totals: np.ndarray) -> np.ndarray:
    parts = np.split(totals, 2, axis=-1)
    scores = [np.apply_along_axis(pairs.corpus, -1, x) for x in parts]
    return (scores[1] - scores[0])[..., None]

  rows = np.concatenate(pairs.sums, -1)
  difference = float(score(rows.sum(0))[0])
  floor = stats.z_score(level) ** 2 / (len(rows) + stats.z_score(level) ** 2)
  low, high = stats.bootstrap(rows, score, level=level)
  low, high = min(low[0], difference - floor), max(high[0], difference + floor)
  return difference, float(low), float(high)


def certify(
  engines: Sequence[Sequence[Pairs]], margin: float, in_order: bool = False
) -> list[tuple[bool, float]]:
  """Returns if each engine is not worse, and its test's level, or 0."""
  tests = [(False, 0.0)] * len(engines)
  remaining = list(range(len(engines)))
  while remaining:
    tested = remaining[:1] if in_order else remaining
    level = 1 - (1 - _LEVEL) / len(tested)
    for i in tested:
      ends = (interval(engines[i], x)[1] for x in (_LEVEL, level))
      tests[i] = all(low > -margin for low in ends), level
    if not any(tests[i][0] for i in tested):
      break
    remaining = [i for i in remaining if not tests[i][0]]
  return tests


def needed(
  tasks: Sequence[Pairs], margin: float, level: float, observed: bool = False
) -> int:
  """Returns the rows that certify a difference of 0, or the observed one."""
  n, (difference, low, _) = sum(map(len, tasks)), interval(tasks, level)
  room, z = margin + difference * observed, stats.z_score(level)
  base, lossy = tasks[0].scores
  if len(tasks) > 1 or tasks[0].sums is not None:
    # Widths fall with the root of the number of rows, and the floor by it.
    width = (difference - low) * math.sqrt(n)
    more = stats.z_score(2 * _POWER - 1)

    def is_enough(n: int) -> bool:
      half = width / math.sqrt(n)
      return max(half, z**2 / (n + z**2)) + more / z * half <= room

    return bisect.bisect_left(range(2**40), True, lo=1, key=is_enough)
  if not np.isin(tasks[0].scores, (0, 1)).all():
    return _needed_by_draws(difference - (lossy - base), room, level)
  shares = np.array([np.mean(lossy > base), np.mean(lossy < base)])
  if not shares.any():
    # The largest share of answers that differ if none was observed to.
    shares += z**2 / (n + z**2) / 2
  elif not observed:
    shares[:] = shares.mean()
  upper = (z + 1) ** 2 * (shares.sum() / room**2 + 1 / room)
  power = functools.partial(_power, *shares, margin, level)
  return bisect.bisect_left(range(math.ceil(upper)), _POWER, lo=1, key=power)


def _power(
  gain: float, loss: float, margin: float, level: float, n: int
) -> float:
  """Returns the probability that right or wrong answers are certified."""
  import scipy.stats

  differing = scipy.stats.binom(n, gain + loss)
  k = np.arange(differing.ppf(1e-9), differing.isf(1e-9) + 1)
  # The most lost answers that are certified, of k that differ.
  low, high = np.full_like(k, -1), k + 1
  while (high - low > 1).any():
    lost = np.maximum((low + high) // 2, 0)
    passes = stats.excludes(k - lost, lost, n, -margin, level)
    passes &= k - 2 * lost > -margin * n
    low, high = np.where(passes, lost, low), np.where(passes, high, lost)
  few_lost = scipy.stats.binom.cdf(low, k, loss / (gain + loss))
  return float(differing.pmf(k) @ few_lost)


def _needed_by_draws(losses: np.ndarray, margin: float, level: float) -> int:
  """Returns the rows needed by the test by betting, from draws of losses."""
  rng, tail = np.random.default_rng(0), (1 - level) / 2
  draws = rng.choice(losses, (1000, 4096))

  def power(n: int) -> float:
    return float(np.mean(stats.p_value(draws[:, :n], margin, tail) <= tail))

  n = bisect.bisect_left(range(4097), _POWER, lo=1, key=power)
  # In the limit the power depends on n margin^2 alone.
  return n if n < 4097 else 4 * _needed_by_draws(losses, 2 * margin, level)


def compare(
  base: str,
  engines: Sequence[tuple[Engine, Sequence[Pairs]]],
  margin: float,
  in_order: bool = False,
) -> pd.DataFrame:
  """Compares engines with a base: over all tasks, then on each of several."""
  scales = {x.scale: x.metric for _, tasks in engines for x in tasks}
  scale = max(scales)
  if len(scales) > 1 or not scale / 1000 <= margin < scale:
    names = ' and '.join(f'{x} to {k:g}' for k, x in scales.items())
    text = f'must be in points of one scale ({names}), got {margin:g}'
    raise ValueError(f'margin: {text}; try --margin={scale / 50:g}.')
  if not all(x.scores[0].any() for x in engines[0][1]):
    text = f'{base} scores 0 on all answers of a task, and can lose nothing'
    raise ValueError(f'base: {text}; correct its prompts or the metric.')
  margin, rows = margin / scale, []
  tests = certify([tasks for _, tasks in engines], margin, in_order)
  for (engine, tasks), test in zip(engines, tests, strict=True):
    parts: list[Any] = [(tasks[0].task, tasks, test)]
    if len(tasks) > 1:
      parts = [(f'mean of {len(tasks)} tasks', tasks, test)]
      parts += [(x.task, [x], *certify([[x]], margin)) for x in tasks]
    for i, (name, part, result) in enumerate(parts):
      labels = dict(variant=engine.name, task=name, is_part=i > 0)
      rows.append(labels | _row(part, margin, *result))
  return pd.DataFrame(rows).assign(base=base, margin=scale * margin)


def _row(
  tasks: Sequence[Pairs], margin: float, is_certified: bool, level: float
) -> dict[str, Any]:
  """Returns the verdict on a task, or on several, and its numbers."""
  n, scale, rows = sum(map(len, tasks)), tasks[0].scale, 0
  verdict = NOT_WORSE if is_certified else 'not tested'
  if not is_certified and level and interval(tasks)[2] < -margin:
    verdict, level = WORSE, _LEVEL
  ends = interval(tasks, level or _LEVEL)
  if verdict == 'not tested' and level:
    rows = needed(tasks, margin, level)
    verdict = 'too few rows' if n < rows else 'undecided'
    if n >= rows:
      is_above = ends[0] > -margin
      rows = needed(tasks, margin, level, observed=True) if is_above else 0
  scores = [
    x.scores.mean(-1) if x.sums is None else [*map(x.corpus, x.sums.sum(1))]
    for x in tasks
  ]
  changes = np.concatenate([np.diff(x.scores, axis=0)[0] for x in tasks])
  sizes = {k: np.concatenate([x.sizes[k] for x in tasks], -1) for k in SIZES}
  has_tokens = np.isfinite(sizes['tokens']).all()
  length = sizes['tokens' if has_tokens else 'characters'].mean(-1)
  accepted, drafted = (sizes[x][1].sum() for x in ('accepted', 'drafted'))
  # Seconds are per token if these are counted, and else per answer.
  per = sizes['tokens'] if has_tokens else np.ones((2, n))
  names = 'base_score score base_length length'.split()
  names += with_ends('difference') + with_ends('speedup')
  values = [*scale * np.mean(scores, 0), *length, *(scale * x for x in ends)]
  is_timed = np.isfinite(sizes['seconds']).all()
  values += stats.speedup(sizes['seconds'], per) if is_timed else [math.nan] * 3
  return dict(
    verdict=verdict,
    level=level or _LEVEL,
    n=n,
    needed=rows,
    metric=', '.join(dict.fromkeys(x.metric for x in tasks)),
    lost=int((changes < 0).sum()),
    gained=int((changes > 0).sum()),
    acceptance_rate=accepted / drafted if drafted > 0 else math.nan,
    **dict(zip(names, values, strict=True)),
  )
