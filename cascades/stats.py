"""Intervals that say how far a score over examples can be trusted."""

import math
from collections.abc import Callable, Sequence

import numpy as np

# Resampled values held at once; keeps memory flat for large test sets.
_BATCH_VALUES = 2**22


def bootstrap_mean_interval(
  values: Sequence[float],
  level: float = 0.95,
  resamples: int = 2000,
  seed: int = 0,
) -> tuple[float, float]:
  """Percentile bootstrap interval of a mean (Efron 1979).

  Args:
    values: One number per example, [n]. Examples, not tokens, are the unit
      that is resampled: tokens of one answer are not independent.
    level: Share of the resampled means inside the interval, in (0, 1).
    resamples: Number of resampled means.
    seed: Equal seeds give equal intervals.

  Returns:
    (low, high), in the unit of `values`. Values that are all equal (one value
    included) give that value twice; no values, or one that is nan, give
    (nan, nan).

  Raises:
    ValueError: `level` is outside (0, 1), or `resamples` is below 1.
  """
  _check(level, resamples)
  values = np.asarray(values, dtype=np.float64)
  if not values.size or np.isnan(values).any():
    return math.nan, math.nan
  # Summing equal values can round; and SciPy refuses a single one.
  if (values == values[0]).all():
    return float(values[0]), float(values[0])
  return _percentiles(values, np.mean, level, resamples, seed)


def bootstrap_sums_interval(
  rows: Sequence[Sequence[float]],
  score: Callable[[np.ndarray], float],
  level: float = 0.95,
  resamples: int = 2000,
  seed: int = 0,
) -> tuple[float, float]:
  """As `bootstrap_mean_interval`, of a score that is made of sums.

  Args:
    rows: What each example adds to the sums, [n, sums].
    score: Of the sums over some examples, [sums].
    level: As for `bootstrap_mean_interval`, and so the rest.
    resamples: Number of resampled scores.
    seed: Equal seeds give equal intervals.

  Returns:
    (low, high), in the unit of `score`. Rows that are all equal (one row
    included) give the score twice; no rows give (nan, nan).

  Raises:
    ValueError: `level` is outside (0, 1), or `resamples` is below 1.
  """
  _check(level, resamples)
  rows = np.asarray(rows, dtype=np.float64)
  if not rows.size:
    return math.nan, math.nan
  if (rows == rows[0]).all():
    whole = float(score(rows.sum(0)))
    return whole, whole

  def resampled(chosen):
    return score(rows[chosen].sum(0))

  places = np.arange(len(rows))
  return _percentiles(
    places, resampled, level, resamples, seed, vectorized=False
  )


def _check(level: float, resamples: int) -> None:
  if not 0 < level < 1:
    raise ValueError(f'level: must lie between 0 and 1, got {level}.')
  if resamples < 1:
    raise ValueError(f'resamples: must be at least 1, got {resamples}.')


def _percentiles(
  values: np.ndarray, statistic, level, resamples, seed, **options
) -> tuple[float, float]:
  # Slow to import, and reports are rebuilt without drawing intervals.
  import scipy.stats

  interval = scipy.stats.bootstrap(
    (values,),
    statistic,
    n_resamples=resamples,
    batch=max(1, _BATCH_VALUES // values.size),
    confidence_level=level,
    method='percentile',
    rng=np.random.default_rng(seed),
    **options,
  ).confidence_interval
  return float(interval.low), float(interval.high)
