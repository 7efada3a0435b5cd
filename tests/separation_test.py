"""Tables of proofs: no context of a block is like another."""

import numpy as np
import pytest

from cascades.proof import law_checks, table_models
from cascades.proof.table_models import TableModel, separate


@pytest.mark.parametrize(
  ('size', 'depth'), [(2, 5), (4, 3), (9, 2), (9, 3), (5, 12)]
)
def test_rows_of_a_block_differ_and_of_a_draft_where_not_all_fit(size, depth):
  model = TableModel.injective(size, depth, max_contexts=200)
  texts = sum(size**length for length in range(depth + 1))
  assert model.contexts <= 200
  if model.contexts == texts:
    # Wherever the block begins, and whatever is before it.
    for start in range(depth + 2):
      prompt = [(3 * i + start) % size for i in range(start)]
      pairs = table_models.draft_pairs(model, prompt, depth)
      assert len(np.unique(pairs)) == texts
  rng = np.random.default_rng(0)
  for _ in range(50):
    tokens = rng.integers(size, size=rng.integers(4) + depth)
    ends = range(len(tokens) - depth, len(tokens) + 1)
    assert len({model.context_after(tokens[:i]) for i in ends}) == depth + 1


@pytest.mark.parametrize(
  ('count', 'size'), [(7, 3), (121, 3), (64, 9), (20, 2)]
)
def test_random_rows_differ(count, size):
  for seed in range(4):
    d = law_checks.draw_distributions('random', count, size, seed)
    # Nothing of it is drawn again.
    separate(d.q, d.p, lambda *drawn: pytest.fail('drawn again'))
    np.testing.assert_allclose([d.q.sum(1), d.p.sum(1)], 1)
  with pytest.raises(ValueError, match='120 distributions of 2 tokens do not'):
    law_checks.draw_distributions('random', 60, 2)
  # Only what is too near is drawn again.
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.ones(4), (2, 30))
  p[3] = q[7]
  new_q, new_p = separate(q, p, lambda rng, n: rng.dirichlet(np.ones(4), n))
  np.testing.assert_array_equal(new_q, q)
  assert 3 in (places := (new_p != p).any(1).nonzero()[0])
  assert len(places) < 5
