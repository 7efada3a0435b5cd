"""Intervals that say how far a mean over examples can be trusted."""

import math
from collections.abc import Sequence

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
  if not 0 < level < 1:
    raise ValueError(f'level: must lie between 0 and 1, got {level}.')
  if resamples < 1:
    raise ValueError(f'resamples: must be at least 1, got {resamples}.')
  values = np.asarray(values, dtype=np.float64)
  if not values.size or np.isnan(values).any():
    return math.nan, math.nan
  # Summing equal values can round; and SciPy refuses a single one.
  if (values == values[0]).all():
    return float(values[0]), float(values[0])
  # Slow to import, and reports are rebuilt without drawing intervals.
  import scipy.stats

  interval = scipy.stats.bootstrap(
    (values,),
    np.mean,
    n_resamples=resamples,
    batch=max(1, _BATCH_VALUES // values.size),
    confidence_level=level,
    method='percentile',
    rng=np.random.default_rng(seed),
  ).confidence_interval
  return float(interval.low), float(interval.high)
