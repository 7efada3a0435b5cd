"""Confidence intervals and tests of scores over examples.

Means of scores in [0, 1] have intervals that hold for few examples, also if all
scores are equal: Wilson's and Tango's score intervals for scores of 0 and 1,
and tests by betting for others. Speed-ups and scores of a whole corpus have a
percentile bootstrap (Efron 1979), which has no width where all examples are
equal: examples are resampled with replacement, and scores are computed from the
sums over each resample. Differences of two points are paired by example.
Examples, not tokens, are the unit: tokens of one answer are not independent.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Level of all intervals.
_LEVEL = 0.95
# Default number of resamples.
RESAMPLES = 10_000
# Values in memory at once, which bounds the memory for large test sets.
_BATCH_VALUES = 2**22

Score = Callable[[np.ndarray], np.ndarray]


def bootstrap(
  rows: Sequence[Sequence[float]],
  score: Score,
  resamples: int = RESAMPLES,
  seed: int = 0,
  level: float = _LEVEL,
) -> tuple[np.ndarray, np.ndarray]:
  """Computes percentile bootstrap intervals of functions of sums.

  A mean, a ratio of totals, and a difference of the two are functions of sums
  over examples. A resample is the count of each example, so that the sums of
  all resamples are one matrix product.
  """
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

  def resampled_scores(indices: np.ndarray, axis: int) -> np.ndarray:
    """Computes the scores of resamples, [scores, draws]."""
    del axis
    indices = np.atleast_2d(indices)
    cells = indices + n * np.arange(len(indices))[:, None]
    counts = np.bincount(cells.ravel(), minlength=n * len(indices))
    return np.asarray(score(counts.reshape(-1, n) @ rows)).T

  # A score without a denominator in some resample is nan; no warning needed.
  with np.errstate(all='ignore'), warnings.catch_warnings():
    warnings.simplefilter('ignore', scipy.stats.DegenerateDataWarning)
    interval = scipy.stats.bootstrap(
      (np.arange(n),),
      resampled_scores,
      n_resamples=resamples,
      batch=max(1, _BATCH_VALUES // max(rows.shape)),
      vectorized=True,
      confidence_level=level,
      method='percentile',
      rng=np.random.default_rng(seed),
    ).confidence_interval
  return interval.low, interval.high


def speedup(
  times: np.ndarray, tokens: np.ndarray, *options: int
) -> tuple[float, float, float]:
  """Computes the speed over that of a reference, the first of two rows."""

  def score(sums: np.ndarray) -> np.ndarray:
    time_over, time, tokens_over, tokens = np.moveaxis(sums, -1, 0)
    return (time_over / tokens_over / (time / tokens))[..., None]

  rows = np.stack([*times, *tokens], 1)
  low, high = bootstrap(rows, score, *options)
  return float(score(rows.sum(0))[0]), float(low[0]), float(high[0])


# Largest share of the capital that a single example can lose.
_STAKE = 0.75


def p_value(losses: np.ndarray, risk: float, delta: float) -> np.ndarray:
  """Returns p-values of the hypothesis that the mean loss exceeds `risk`.

  A capital that begins at 1 is multiplied by 1 + bet (risk - loss) at each
  example. If the hypothesis is true it exceeds 1 / delta with probability at
  most delta, by Ville's inequality (Waudby-Smith and Ramdas, 2024).
  """
  n = losses.shape[-1]
  if not n:
    return np.ones(losses.shape[:-1])
  # The test holds for exchangeable examples alone.
  losses = losses[..., np.random.default_rng(0).permutation(n)]
  # A bet depends only on the examples before it.
  count = np.arange(1, n + 1)
  mean = np.cumsum(losses, -1) / count
  variance = (0.25 + np.cumsum((losses - mean) ** 2, -1)) / (count + 1)
  variance = np.concatenate(
    [np.full_like(variance[..., :1], 0.25), variance[..., :-1]], -1
  )
  bet = np.sqrt(2 * math.log(1 / delta) / (n * variance))
  bet = np.minimum(bet, _STAKE / (1 - risk))
  capital = np.cumsum(np.log1p(bet * (risk - losses)), -1)
  return np.exp(-np.maximum(capital.max(-1), 0))


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Computes intervals of means of scores in [0, 1], [n, points].

  They are Wilson's (1927) if all scores are 0 or 1, else by betting. Examples
  whose score is nan are left out.
  """
  return _by_point(values, np.zeros_like(values), _wilson, _LEVEL)


def paired_interval(
  values: np.ndarray, reference: np.ndarray, level: float = _LEVEL
) -> tuple[np.ndarray, np.ndarray]:
  """Computes intervals of mean differences of paired scores, [n, points].

  They are Tango's (1998) if all scores are 0 or 1, else by betting. Examples
  whose scores are not both known are left out.
  """
  return _by_point(values, reference, _tango, level)


def _by_point(values, reference, score_interval, level):
  """Computes the interval of each point from its scored examples."""
  ends = np.full((2, values.shape[1]), math.nan)
  for i, pair in enumerate(np.stack([values, reference], -1).swapaxes(0, 1)):
    pair = pair[np.isfinite(pair).all(1)]
    if not len(pair):
      continue
    if np.isin(pair, (0, 1)).all():
      ends[:, i] = score_interval(*pair.T, level)
    else:
      differences, delta = pair[:, 0] - pair[:, 1], (1 - level) / 2
      ends[:, i] = (
        -_upper_bound(-differences, delta),
        _upper_bound(differences, delta),
      )
  return ends[0], ends[1]


def _upper_bound(losses: np.ndarray, delta: float) -> float:
  """Returns the least mean loss that the examples exclude, by betting."""
  # The p-value falls as the risk rises.
  return _boundary(lambda x: p_value(losses, x, delta) > delta, -1.0, 1.0, 30)


def _boundary(
  is_inside: Callable[[float], Any], inside: float, outside: float, steps: int
) -> float:
  """Returns the nearest value to one inside that is outside, by bisection."""
  for _ in range(steps):
    midpoint = (inside + outside) / 2
    if is_inside(midpoint):
      inside = midpoint
    else:
      outside = midpoint
  return outside


def _wilson(values, _, level) -> tuple[float, float]:
  """Returns Wilson's interval of a proportion."""
  import scipy.stats

  count = scipy.stats.binomtest(int(values.sum()), len(values))
  return tuple(count.proportion_ci(level, method='wilson'))


def _tango(values, reference, level) -> tuple[float, float]:
  """Returns Tango's interval of a difference of paired proportions."""
  n, difference = len(values), float(np.mean(values - reference))
  gained, lost = np.sum(values > reference), np.sum(values < reference)

  def is_inside(delta: float) -> bool:
    return not excludes(int(gained), int(lost), n, delta, level)

  low, high = (_boundary(is_inside, difference, x, 40) for x in (-1.0, 1.0))
  return low, high


def z_score(level: float) -> float:
  """Returns the half-width of a normal interval, in standard deviations."""
  return statistics.NormalDist().inv_cdf((1 + level) / 2)


def excludes(
  gained: Any, lost: Any, n: int, delta: float, level: float = _LEVEL
) -> Any:
  """Tells if Tango's interval of some counts excludes a difference."""
  # The share of examples that only the reference has right is the most likely
  # one, given a difference of delta.
  b = (2 * n - gained + lost) * delta - gained - lost
  root = np.sqrt(np.maximum(0.0, b * b + 8 * n * lost * delta * (1 - delta)))
  variance = n * ((root - b) / (2 * n) + delta * (1 - delta))
  distance = np.abs(n * ((gained - lost) / n - delta))
  return distance > z_score(level) * np.sqrt(np.maximum(0.0, variance))
