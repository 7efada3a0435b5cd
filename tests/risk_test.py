"""Leniences with a guarantee: it holds, it finds some, and it says when not."""

import math

import numpy as np
import pytest

from experiments.analysis import risk

DRAWS = 2000
RISK, DELTA = 0.05, 0.1


def sample_losses(wrong, n, seed=0):
  """Losses of generated records, [draws, leniences, n].

  A right answer of the verifier's is lost at each lenience with its own
  probability, and a wrong one made right at a tenth: what is lost on average is
  what `expected` says.
  """
  rng = np.random.default_rng(seed)
  right = rng.random((DRAWS, 1, n)) < 0.9
  chance = np.array(wrong)[:, None]
  spoilt = rng.random((DRAWS, len(wrong), n)) < chance
  mended = rng.random((DRAWS, len(wrong), n)) < 0.1
  method = np.where(right, ~spoilt, mended)
  return right.astype(float) - method


def expected(wrong):
  return 0.9 * np.array(wrong) - 0.1 * 0.1


@pytest.mark.parametrize('n', [60, 100, 400])
@pytest.mark.parametrize(
  'wrong',
  [
    # At the edge from the first on, and a little beyond.
    [0.067] * 4,
    [0.07, 0.08, 0.09, 0.2],
    # Good, then bad; and a good one behind a bad one, which is not reached.
    [0.0, 0.02, 0.08, 0.3],
    [0.0, 0.09, 0.0, 0.0],
  ],
)
def test_what_is_guaranteed_is_kept(wrong, n):
  counts = risk.loosest(sample_losses(wrong, n), RISK, DELTA)
  # What the lenience that was chosen really loses; strict loses nothing.
  lost = np.concatenate([[0.0], expected(wrong)])[counts]
  failed = (lost > RISK).mean()
  # Three standard errors of a share of 2,000 draws.
  assert failed <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / DRAWS)


@pytest.mark.parametrize(('n', 'share'), [(100, 0.5), (400, 0.95)])
def test_more_than_strict_is_found_where_little_is_lost(n, share):
  counts = risk.loosest(sample_losses([0.01, 0.01, 0.5], n), RISK, DELTA)
  assert (counts >= 1).mean() >= share
  assert (counts == 3).mean() == 0


def test_a_p_value_is_no_less_than_it_should_be():
  for share in (0.01, 0.05, 0.1, 0.3):
    losses = sample_losses([(RISK + 0.01) / 0.9], 200, seed=1)
    p = risk.p_value(losses, RISK, DELTA)
    error = math.sqrt(share * (1 - share) / DRAWS)
    assert (p <= share).mean() <= share + 3 * error
  # Nor where the easy examples come first, as in some files.
  assert risk.p_value(np.repeat([0.0, 1.0], 200), RISK, DELTA) > 0.9


def test_fewer_examples_than_needed_show_nothing():
  n = risk.needed(RISK, DELTA)
  assert risk.p_value(np.zeros(n), RISK, DELTA) <= DELTA
  assert risk.p_value(np.zeros(n - 1), RISK, DELTA) > DELTA
  assert risk.p_value(np.zeros(0), RISK, DELTA) == 1
  # Not even gains make up for them.
  assert risk.needed(0.02, 0.1) > risk.needed(0.05, 0.1)
