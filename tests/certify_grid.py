"""Simulates certificates: wrong ones, and those that enough rows promise.

Command: python tests/certify_grid.py
Writes tests/fixtures/certify_grid.json, which `certify_test` reads: the share
of 1,000 trials in which an engine of three, each worse by exactly the margin,
is certified; and the share that is certified by the rows that a test needs.
"""

import json
import pathlib

import numpy as np

from experiments.analysis import certificates
from experiments.analysis.engine_answers import Pairs

_FIXTURE = pathlib.Path(__file__).parent / 'fixtures/certify_grid.json'
_KINDS, _ROWS = ('right', 'skewed', 'rare'), (30, 100, 300)


def answers(kind, rng, n, loss):
  """Pairs whose expected difference is a loss."""
  base = np.full(n, 0.5)
  if kind == 'words':
    words = rng.poisson(10, n) + 1.0
    right = rng.binomial(words.astype(int), 0.5).astype(float)
    # All words of an answer are lost.
    less = np.where(rng.random(n) < 2 * loss, 0, right)
    sums = np.array([[right, words], [less, words]]).swapaxes(1, 2)
    ratio = lambda x: x[0] / x[1]  # noqa: E731
    return Pairs('', kind, 1.0, sums[..., 0] / words, {}, sums, ratio)
  if kind == 'right':
    drawn = rng.random(n)
    base = (drawn > 0.05 - loss / 2).astype(float)
    lossy = np.where(drawn > 0.95 - loss / 2, 0.0, 1.0)
  elif kind == 'skewed':
    lossy = base - (rng.random(n) < 0.2) * rng.beta(1, 3, n) * 20 * loss
  else:
    lossy = base - (rng.random(n) < 0.05) * 20 * loss
  return Pairs('', kind, 1.0, np.stack([base, lossy]), {})


def wrong(kind, n, margin, trials=1000):
  """The share of trials with a wrong certificate."""
  rng, count = np.random.default_rng(n), 0
  for _ in range(trials):
    kinds = [kind.split()] * 3
    engines = [[answers(x, rng, n, margin) for x in tasks] for tasks in kinds]
    count += any(x for x, _ in certificates.certify(engines, margin))
  return count / trials


def promised(kind, margin, trials):
  """The rows that a test needs, and the share of trials it passes on them."""
  rng = np.random.default_rng(0)
  pilot = answers(kind, rng, 400, margin)
  needed, passed = certificates.needed([pilot], margin, 0.95), 0
  for _ in range(trials):
    rows = rng.integers(0, 400, needed)
    sums, scores = pilot.sums, pilot.scores[:, rows]
    if sums is None:
      scores[1] -= np.diff(pilot.scores, axis=0).mean()
    else:
      # Either answer is the base's, so that the true difference is 0.
      swaps = rng.random((1, needed, 1)) < 0.5
      sums = np.where(swaps, sums[::-1, rows], sums[:, rows])
    again = Pairs('', kind, 1.0, scores, {}, sums, pilot.corpus)
    passed += certificates.certify([[again]], margin)[0][0]
  return needed, passed / trials


if __name__ == '__main__':
  cells = [(x, n, m) for x in _KINDS for n in _ROWS for m in (0.02, 0.05)]
  cells += [('right skewed', 100, 0.05), ('words', 100, 0.05)]
  kinds = ('skewed', 0.05, 1000), ('rare', 0.05, 1000), ('words', 0.05, 300)
  result = {
    'wrong': [[*x, wrong(*x)] for x in cells],
    'promised': [[*x[:2], *promised(*x)] for x in kinds],
  }
  _FIXTURE.write_text(json.dumps(result) + '\n')
