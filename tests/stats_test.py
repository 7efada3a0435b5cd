"""Tests of the intervals."""

import bisect
import math

import numpy as np
import pytest
import scipy.stats

from experiments.records.stats import bootstrap, p_value, paired_interval
from experiments.records.stats import mean_interval as score_interval


def mean_interval(values, **drawn):
  """The bootstrap interval of one mean, [n]."""
  rows = np.array(values, dtype=float)[:, None]
  low, high = bootstrap(rows, lambda s: s / max(1, len(rows)), **drawn)
  return low[0], high[0]


def paired(gained, lost, n, level=0.95):
  """The interval of the difference of two points that are right or wrong."""
  reference = (np.arange(n) >= gained).astype(float)
  values = np.where(np.arange(n) < n - lost, 1.0, 0.0)
  low, high = paired_interval(values[:, None], reference[:, None], level)
  return low[0], high[0]


def least_gained(lost, n, margin):
  """The fewest gained answers at which a margin is certified."""
  return bisect.bisect_left(
    range(n - lost + 1), -margin, key=lambda gained: paired(gained, lost, n)[0]
  )


@pytest.mark.parametrize('margin', [0.01, 0.02, 0.05])
@pytest.mark.parametrize('n', [12, 20, 30, 50, 100, 135, 200])
def test_a_margin_is_certified_wrongly_at_most_once_in_twenty(n, margin):
  # The true difference is -margin: every certificate is wrong.
  certified = [(least_gained(lost, n, margin), lost) for lost in range(n + 1)]
  for discordant in np.linspace(margin, 0.3, 12):
    shares = (discordant - margin) / 2, (discordant + margin) / 2
    wrong = sum(
      scipy.stats.binom.pmf(lost, n, shares[1])
      * scipy.stats.binom.sf(gained - 1, n - lost, shares[0] / (1 - shares[1]))
      for gained, lost in certified
    )
    assert wrong <= 0.05


def test_tangos_interval_is_the_published_one():
  # Tango (1998), table 1: 12 and 2 discordant of 43, and none of 50.
  assert paired(gained=0, lost=0, n=50)[1] == pytest.approx(0.0713, abs=1e-4)
  z = scipy.stats.norm.ppf(0.975)
  assert paired(0, 0, 125)[0] == pytest.approx(-(z**2) / (125 + z**2))
  assert paired(0, 0, 124)[0] < -0.03 < paired(0, 0, 125)[0]
  low, high = paired(gained=9, lost=4, n=200)
  assert (low, high) == pytest.approx([-x for x in paired(4, 9, 200)][::-1])
  assert low < 5 / 200 < high


@pytest.mark.parametrize('n', [30, 100])
@pytest.mark.parametrize('share', [0.0, 0.5, 0.9])
def test_scores_between_0_and_1_are_certified_rarely_at_the_margin(n, share):
  # A loss of .05 on average; `share` of the answers are alike.
  rng = np.random.default_rng(n)
  reference = rng.uniform(0.5, 0.9, (n, 400))
  differs = rng.random((n, 400)) >= share
  lost = rng.beta(1, 3, (n, 400)) * 0.2 / (1 - share)
  values = reference - np.where(differs, np.minimum(lost, 0.5), 0)
  mean_loss = float((reference - values).mean())
  low, high = paired_interval(values, reference)
  assert (low > -mean_loss).mean() <= 0.05
  assert (high < -mean_loss).mean() <= 0.05
  assert ((low < 0) & (low > -1)).all()


def test_few_equal_scores_are_not_certain():
  for score in (0.0, 0.37, 1.0):
    values = np.full((12, 1), score)
    low, high = score_interval(values)
    assert low[0] < score - 0.1 or not score
    assert high[0] > score + 0.1 or score == 1
    low, high = paired_interval(values, values)
    assert low[0] < -0.2 < 0.2 < high[0]
  # Nor are many, where the easy examples come first, as in some files.
  assert p_value(np.repeat([0.0, 1.0], 200), 0.05, 0.1) > 0.9
  # A score that is missing is in no interval.
  values = np.array([[1.0], [math.nan], [1.0]])
  assert score_interval(values) == score_interval(values[::2])
  assert np.isnan(score_interval(values[1:2])).all()


def test_equal_seeds_agree():
  values = np.random.default_rng(1).normal(size=80)
  assert mean_interval(values) == mean_interval(values)
  assert mean_interval(values) != mean_interval(values, seed=1)


def test_what_does_not_vary_or_is_not_known_has_no_spread():
  for n in (1, 3, 1000):
    assert mean_interval([0.5] * n) == (0.5, 0.5)
  # Nor has a score that has no denominator in some draw.
  rows = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
  _, high = bootstrap(rows, lambda s: s[..., :1] / s[..., 1:])
  assert not np.isfinite(high).any()
  for values in ([], [1.0, math.nan]):
    assert all(map(math.isnan, mean_interval(values)))


def test_points_share_their_draws_and_are_what_they_are_alone():
  rng = np.random.default_rng(5)
  values = (rng.random((300, 3)) < [0.6, 0.62, 0.9]).astype(float)
  low, high = bootstrap(values, lambda s: s / len(values))
  for i in range(3):
    alone = mean_interval(values[:, i])
    assert alone == pytest.approx((low[i], high[i]), abs=1e-12)
  # Draws are those of plain resampling.
  values = values[:40, 0]
  draws = np.random.default_rng(0).integers(0, 40, (10_000, 40))
  want = np.percentile(values[draws].mean(1), [2.5, 97.5])
  assert mean_interval(values) == pytest.approx(want, abs=0.026)
