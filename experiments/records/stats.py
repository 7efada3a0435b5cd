"""Confidence intervals and tests of scores over examples.

Every interval comes from one bootstrap (Efron 1979): examples are resampled
with replacement, and scores are computed from the sums over each resample.
Points that answered the same examples share the resamples, so that a difference
of two points is a paired one. Examples, not tokens, are the unit: tokens of
one answer are not independent.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Default number of resamples.
RESAMPLES = 10_000
# Values in memory at once, which bounds the memory for large test sets.
_BATCH_VALUES = 2**22

Score = Callable[[np.ndarray], np.ndarray]


def bootstrap(
  rows: Sequence[Sequence[float]],
  score: Score,
  level: float = 0.95,
  resamples: int = RESAMPLES,
  seed: int = 0,
  strata: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray]:
  """Computes percentile bootstrap intervals of functions of sums.

  A mean, a ratio of totals, and a difference of the two are functions of sums
  over examples. A resample is the count of each example, so that the sums of
  all resamples are one matrix product.

  Args:
    rows: Values of each example that are summed, [n, sums].
    score: Maps sums over examples, [..., sums], to scores, [..., scores].
    level: Share of the resampled scores inside the interval, in (0, 1).
    resamples: Number of resampled scores.
    seed: Equal seeds give equal resamples of equally many examples.
    strata: Number of consecutive rows of each group; rows are resampled within
      their group. By default all rows are one group.

  Returns:
    (low, high), [scores] each. If all rows are equal, or there is one row, both
    are the score. Both are nan for a score that is nan for some resample, and
    if there are no rows.

  Raises:
    ValueError: `level` is outside (0, 1), or `resamples` is below 1.
  """
  if not 0 < level < 1:
    raise ValueError(f'level: must lie between 0 and 1, got {level}.')
  if resamples < 1:
    raise ValueError(f'resamples: must be at least 1, got {resamples}.')
  rows = np.asarray(rows, dtype=np.float64)
  n = len(rows)
  if not n:
    nothing = np.full(np.shape(score(np.zeros(rows.shape[1:]))), math.nan)
    return nothing, nothing
  # Summing equal values can round; and SciPy refuses a single one.
  if np.array_equal(rows, np.broadcast_to(rows[0], rows.shape), equal_nan=True):
    value = np.asarray(score(rows.sum(0)), dtype=np.float64)
    return value, value
  # Slow to import, and much that imports this module draws no intervals.
  import scipy.stats

  def count_rows(indices: np.ndarray) -> np.ndarray:
    """Counts each row of a group in each resample, [draws, rows]."""
    draws, size = np.atleast_2d(indices).shape
    cells = indices + size * np.arange(draws)[:, None]
    counts = np.bincount(cells.ravel(), minlength=size * draws)
    return counts.reshape(draws, size)

  def resampled_scores(*indices: np.ndarray, axis: int) -> np.ndarray:
    """Computes the scores of resamples of each group, [scores, draws]."""
    del axis
    counts = np.concatenate(list(map(count_rows, indices)), 1)
    return np.asarray(score(counts @ rows)).T

  # A score without a denominator in some resample is nan; no warning needed.
  with np.errstate(all='ignore'), warnings.catch_warnings():
    warnings.simplefilter('ignore', scipy.stats.DegenerateDataWarning)
    interval = scipy.stats.bootstrap(
      tuple(map(np.arange, strata or (n,))),
      resampled_scores,
      n_resamples=resamples,
      batch=max(1, _BATCH_VALUES // max(rows.shape)),
      vectorized=True,
      confidence_level=level,
      method='percentile',
      rng=np.random.default_rng(seed),
    ).confidence_interval
  return interval.low, interval.high


def bootstrap_means(
  values: np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Computes intervals of the means of points, with shared resamples.

  Args:
    values: One number per example and point, [n, points].
    **options: `level`, `resamples` and `seed` of `bootstrap`.

  Returns:
    (low, high), [points] each, in the unit of `values`. If all values of a
    point are equal, both are that value; both are nan if there are no values,
    or a value is nan.
  """
  n = max(1, len(values))
  # The mean of equal values is that value, to the last bit.
  equal = len(values) > 0 and (values == values[:1]).all(0)
  offset = np.where(equal, values[0], 0.0) if len(values) else 0.0
  low, high = bootstrap(values - offset, lambda sums: sums / n, **options)
  return low + offset, high + offset


def bootstrap_sums_interval(
  rows: Sequence[Sequence[float]],
  score: Callable[[np.ndarray], float],
  **options: Any,
) -> tuple[float, float]:
  """Computes the interval of a score that takes a single list of sums.

  Args:
    rows: Values of each example that are summed, [n, sums].
    score: Maps sums over examples, [sums], to a number.
    **options: `level`, `resamples` and `seed` of `bootstrap`.

  Returns:
    (low, high), in the unit of `score`. If all rows are equal, both are the
    score; both are nan if there are no rows.
  """
  rows = np.asarray(rows, dtype=np.float64)
  if not len(rows):
    rows, score = np.zeros((0, 1)), lambda sums: math.nan

  def scores(sums):
    return np.apply_along_axis(score, -1, sums)[..., None]

  low, high = bootstrap(rows, scores, **options)
  return float(low[0]), float(high[0])


def not_inferior(low: float | np.ndarray, margin: float) -> bool | np.ndarray:
  """Returns True if a quality is not inferior to another by a margin.

  Args:
    low: Lower end of the interval of the (paired) difference.
    margin: Largest acceptable loss, in the unit of the quality.

  Returns:
    True where the whole interval is above -margin; False where it is nan.
  """
  return np.asarray(low) > -margin


def mcnemar(first: Sequence[float], second: Sequence[float]) -> float:
  """Returns the p-value of McNemar's exact test (1947) on paired answers.

  Args:
    first: 1 for each correct answer of one point, else 0, [n].
    second: 1 or 0 for the answers of another point to the same examples, [n].

  Returns:
    The probability of differences at least as uneven if both were equally good.
  """
  from statsmodels.stats import contingency_tables

  right = np.asarray(first) > 0.5, np.asarray(second) > 0.5
  table = [
    [np.sum(right[0] & right[1]), np.sum(right[0] & ~right[1])],
    [np.sum(~right[0] & right[1]), np.sum(~right[0] & ~right[1])],
  ]
  return float(contingency_tables.mcnemar(table, exact=True).pvalue)


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Adjusts p-values for multiple tests by Holm (1979); nan stays nan."""
  from statsmodels.stats import multitest

  adjusted = np.array(p_values, dtype=np.float64)
  is_valid = ~np.isnan(adjusted)
  if is_valid.any():
    _, corrected, *_ = multitest.multipletests(
      adjusted[is_valid], method='holm'
    )
    adjusted[is_valid] = corrected
  return adjusted
