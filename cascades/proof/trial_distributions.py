"""Distributions of several kinds, extreme ones too, to test a method on."""

from typing import Any

import numpy as np

from cascades import methods
from cascades.proof import separation

DISTRIBUTION_KINDS = ('random', 'equal', 'disjoint', 'one_hot', 'near_equal')


def draw_distributions(
  kind: str,
  count: int = 64,
  size: int = 9,
  seed: int = 0,
  pairs: np.ndarray | None = None,
) -> methods.Distributions:
  """Draws distributions to test a method on, in float64, as numpy arrays."""

  def draw(rng, count):
    return rng.dirichlet(np.full(size, 0.5), count)

  rng = np.random.default_rng(seed)
  q, p = separation.separate(draw(rng, count), draw(rng, count), draw, pairs)
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
  # A softmax ignores a constant added to all logits; most are above 0.
  logits = np.log(gates[1]) + rng.uniform(0, 12, (count, 1))
  # NumPy arrays, which methods take as well.
  arrays: Any = dict(
    q=q, p=p, q_gate=gates[0], p_gate=gates[1], p_logits=logits
  )
  return methods.Distributions(**arrays)
