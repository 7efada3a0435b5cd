"""Distributions of many kinds to try a method on, the odd ones too."""

import numpy as np

from cascades import methods
from cascades.proof import separation

KINDS = ('random', 'equal', 'disjoint', 'one_hot', 'near_equal')


def rows(
  kind: str,
  count: int = 64,
  size: int = 9,
  seed: int = 0,
  pairs: np.ndarray | None = None,
) -> methods.Distributions:
  """Distributions to try a method on, float64, numpy.

  Args:
    kind: One of `KINDS`: 'random'; or p and q 'equal', 'disjoint', both
      'one_hot', or 'near_equal', which float32 can hardly tell apart.
    count: How many rows.
    size: V, entries of a row.
    seed: Fixes the random numbers that they are drawn with.
    pairs: Rows of which p and q have to differ, as `separation.separated` takes
      them; None for all rows.

  Returns:
    Each field [count, size], without a cap; the gates are independent of p and
    q, and the logits are those of the verifier's gate. Every two distributions
    among the q and p of 'random' rows differ by `separation.LEAST_DISTANCE`,
    and so do the q of 'equal' and 'near_equal' rows.

  Raises:
    ValueError: There is no room for so many distributions that differ.
  """

  def draw(rng, count):
    return rng.dirichlet(np.full(size, 0.5), count)

  rng = np.random.default_rng(seed)
  q, p = separation.separated(draw(rng, count), draw(rng, count), draw, pairs)
  if kind == 'equal':
    p = q
  elif kind == 'disjoint':
    q[:, ::2], p[:, 1::2] = 0, 0
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
  elif kind == 'one_hot':
    q = np.eye(size)[rng.integers(size, size=count)]
    p = np.eye(size)[rng.integers(size, size=count)]
  elif kind == 'near_equal':
    p = q * (1 + 1e-7 * rng.standard_normal(q.shape))
    p = p / p.sum(1, keepdims=True)
  gates = rng.dirichlet(np.ones(size), (2, count))
  # Softmax forgets what is added to all of them; most are above 0.
  logits = np.log(gates[1]) + rng.uniform(0, 12, (count, 1))
  return methods.Distributions(q, p, *gates, logits)
