"""What can be said of scores over examples, and how far it can be trusted.

Every interval comes from one bootstrap (Efron 1979): examples are drawn anew,
with replacement, and all that is asked is worked out from the sums over each
draw. Points that answered the same examples share the draws, so that a
difference of two is a paired one. Examples, not tokens, are the unit: tokens of
one answer are not independent.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# How often examples are drawn anew, unless it is said.
RESAMPLES = 10_000
# Values held at once; keeps memory flat for large test sets.
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
  """Percentile bootstrap intervals of scores that are made of sums.

  A mean, a ratio of totals, a difference of two of them: whatever is a function
  of sums over examples. A draw is how often it has each example, so that the
  sums of all draws are one matrix product.

  Args:
    rows: What each example adds to the sums, [n, sums].
    score: [..., sums] to [..., scores]: of the sums over some examples.
    level: Share of the resampled scores inside the interval, in (0, 1).
    resamples: Number of resampled scores.
    seed: Equal seeds give equal draws of equally many examples.
    strata: How many rows, from the first on, are of each group within which
      they are drawn anew; by default all rows are one group.

  Returns:
    (low, high), [scores] each. Rows that are all equal (one row included) give
    the score twice. A score that is nan for some draw has no interval, that is
    nan twice; so have all where there are no rows.

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
    whole = np.asarray(score(rows.sum(0)), dtype=np.float64)
    return whole, whole
  # Slow to import, and much that imports this module draws no intervals.
  import scipy.stats

  def often(chosen: np.ndarray) -> np.ndarray:
    """How often each draw has each row of a group, [draws, rows]."""
    draws, size = np.atleast_2d(chosen).shape
    places = chosen + size * np.arange(draws)[:, None]
    counts = np.bincount(places.ravel(), minlength=size * draws)
    return counts.reshape(draws, size)

  def resampled(*chosen: np.ndarray, axis: int) -> np.ndarray:
    counts = np.concatenate(list(map(often, chosen)), 1)
    return np.asarray(score(counts @ rows)).T

  # What has no denominator in some draw is nan, and needs no warning.
  with np.errstate(all='ignore'), warnings.catch_warnings():
    warnings.simplefilter('ignore', scipy.stats.DegenerateDataWarning)
    interval = scipy.stats.bootstrap(
      tuple(map(np.arange, strata or (n,))),
      resampled,
      n_resamples=resamples,
      batch=max(1, _BATCH_VALUES // max(rows.shape)),
      vectorized=True,
      confidence_level=level,
      method='percentile',
      rng=np.random.default_rng(seed),
    ).confidence_interval
  return interval.low, interval.high


def bootstrap_means(
  values: np.ndarray, **drawn: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Intervals of the means of many points, which share their draws.

  Args:
    values: One number per example and point, [n, points].
    **drawn: `level`, `resamples` and `seed` of `bootstrap`.

  Returns:
    (low, high), [points] each, in the unit of `values`. Values that are all
    equal (one value included) give that value twice; no values, or one that is
    nan, give nan twice.
  """
  n = max(1, len(values))
  # The mean of equal values is that value, to the last bit.
  equal = len(values) > 0 and (values == values[:1]).all(0)
  offset = np.where(equal, values[0], 0.0) if len(values) else 0.0
  low, high = bootstrap(values - offset, lambda sums: sums / n, **drawn)
  return low + offset, high + offset


def bootstrap_sums_interval(
  rows: Sequence[Sequence[float]],
  score: Callable[[np.ndarray], float],
  **drawn: Any,
) -> tuple[float, float]:
  """Interval of one score that knows a single list of sums.

  Args:
    rows: What each example adds to the sums, [n, sums].
    score: [sums] to a number: the score, of the sums over some examples.
    **drawn: `level`, `resamples` and `seed` of `bootstrap`.

  Returns:
    (low, high), in the unit of `score`. Rows that are all equal (one row
    included) give the score twice; no rows give (nan, nan).
  """
  rows = np.asarray(rows, dtype=np.float64)
  if not len(rows):
    rows, score = np.zeros((0, 1)), lambda sums: math.nan

  def scores(sums):
    return np.apply_along_axis(score, -1, sums)[..., None]

  low, high = bootstrap(rows, scores, **drawn)
  return float(low[0]), float(high[0])


def not_inferior(low: float | np.ndarray, margin: float) -> bool | np.ndarray:
  """Whether a quality is no worse than another, but for a margin.

  Args:
    low: Lower end of the interval of the (paired) difference.
    margin: By how much it may be worse, in the unit of the quality.

  Returns:
    Whether all of the interval is above -margin; not so where it is nan.
  """
  return np.asarray(low) > -margin


def mcnemar(first: Sequence[float], second: Sequence[float]) -> float:
  """The exact test of McNemar (1947) on answers that are right or wrong.

  Args:
    first: 1 for each example that was answered rightly, else 0, [n].
    second: 1 or 0 for each of the same examples, of another's answers, [n].

  Returns:
    How likely differences at least as uneven are, were both as good.
  """
  from statsmodels.stats import contingency_tables

  right = np.asarray(first) > 0.5, np.asarray(second) > 0.5
  table = [
    [np.sum(right[0] & right[1]), np.sum(right[0] & ~right[1])],
    [np.sum(~right[0] & right[1]), np.sum(~right[0] & ~right[1])],
  ]
  return float(contingency_tables.mcnemar(table, exact=True).pvalue)


def holm(p_values: Sequence[float]) -> np.ndarray:
  """P-values for as many tests as these, by Holm (1979); nan stays nan."""
  from statsmodels.stats import multitest

  adjusted = np.array(p_values, dtype=np.float64)
  known = ~np.isnan(adjusted)
  if known.any():
    adjusted[known] = multitest.multipletests(adjusted[known], method='holm')[1]
  return adjusted
