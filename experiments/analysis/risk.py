"""The loosest lenience that loses little quality, with a guarantee.

Learn-then-test (Angelopoulos et al. 2021, arXiv 2110.01052): for each lenience
the hypothesis "more than `risk` of the quality is lost against the verifier" is
tested on n examples, from the strictest lenience to the loosest, until the
first hypothesis that is not rejected. Such a fixed sequence needs no further
correction for the number of leniences: with probability at least 1 - delta over
the examples, the last rejected lenience loses at most `risk`. The guarantee
holds for any distribution that the examples were drawn from. They are tested in
a random order: those of a file may be sorted by difficulty, and those of two
tasks follow each other.

The loss of an example is the verifier's quality less the method's, both in
[0, 1], and is thus in [-1, 1]. The test, `stats.p_value`, bets against the
hypothesis (Waudby-Smith and Ramdas 2020, arXiv 2010.09686, section 4).
"""

import bisect
import functools
import itertools

import numpy as np

from experiments.records.stats import p_value


@functools.cache
def needed(risk: float, delta: float) -> int:
  """Returns the fewest examples for a guarantee, if no example has a loss."""

  def is_rejected(n: int) -> bool:
    return p_value(np.zeros(n), risk, delta) <= delta

  high = next(n for i in itertools.count() if is_rejected(n := 2**i))
  return bisect.bisect_left(range(high + 1), True, high // 2, key=is_rejected)


def loosest(losses: np.ndarray, risk: float, delta: float) -> np.ndarray:
  """Counts the leniences, from the strictest on, that lose at most `risk`."""
  is_rejected = p_value(losses, risk, delta) <= delta
  return np.cumprod(is_rejected, -1).sum(-1)
