"""Tests of the intervals."""

import math

import numpy as np
import pytest

from cascades.stats import bootstrap_mean_interval, bootstrap_sums_interval


def test_interval_of_a_binary_mean_is_near_the_normal_one():
  values = np.repeat([0.0, 1.0], [120, 280])
  low, high = bootstrap_mean_interval(values)
  half = 1.96 * math.sqrt(0.7 * 0.3 / 400)
  assert low == pytest.approx(0.7 - half, abs=0.006)
  assert high == pytest.approx(0.7 + half, abs=0.006)


def test_intervals_hold_the_true_mean_as_often_as_they_say():
  rng = np.random.default_rng(0)
  hits = 0
  for trial in range(200):
    low, high = bootstrap_mean_interval(
      rng.normal(3.0, 1.0, 60), level=0.9, resamples=300, seed=trial
    )
    hits += low <= 3.0 <= high
  # Binomial(200, 0.9) leaves this range once in some thousands of trials.
  assert 164 <= hits <= 195


def test_a_higher_level_gives_a_wider_interval():
  values = np.random.default_rng(1).normal(size=80)
  inner = bootstrap_mean_interval(values, level=0.5)
  outer = bootstrap_mean_interval(values, level=0.99)
  assert outer[0] < inner[0] < inner[1] < outer[1]


def test_equal_seeds_agree_and_others_do_not():
  values = np.random.default_rng(2).normal(size=50)
  assert bootstrap_mean_interval(values) == bootstrap_mean_interval(values)
  assert bootstrap_mean_interval(values) != bootstrap_mean_interval(
    values, seed=1
  )


@pytest.mark.parametrize('n', [1, 3, 1000])
def test_equal_values_give_that_value_twice(n):
  assert bootstrap_mean_interval([0.1] * n) == (0.1, 0.1)


@pytest.mark.parametrize('values', [[], [1.0, math.nan]])
def test_nothing_known_gives_nan(values):
  assert all(map(math.isnan, bootstrap_mean_interval(values)))


def test_a_mean_made_of_sums_has_the_interval_of_a_mean():
  rows = [[float(i % 3 == 0), 1.0] for i in range(60)]
  want = bootstrap_mean_interval([row[0] for row in rows])
  got = bootstrap_sums_interval(rows, lambda sums: sums[0] / sums[1])
  assert got == pytest.approx(want, abs=0.02)


def test_sums_of_one_row_or_none_have_no_spread():
  assert bootstrap_sums_interval([[1.0, 2.0]] * 3, max) == (6.0, 6.0)
  assert all(map(math.isnan, bootstrap_sums_interval([], max)))


@pytest.mark.parametrize('wrong', [{'level': 1.0}, {'resamples': 0}])
def test_impossible_settings_are_refused(wrong):
  for interval in (
    bootstrap_mean_interval,
    lambda values, **wrong: bootstrap_sums_interval([values], max, **wrong),
  ):
    with pytest.raises(ValueError, match=next(iter(wrong))):
      interval([0.0, 1.0], **wrong)
