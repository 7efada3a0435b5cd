"""Tables of proofs: no context of a block is like another."""

import dataclasses

import jax
import jax.numpy as jnp
import many_methods
import numpy as np
import pytest

from cascades import methods
from cascades.proof import law_checks, table_models
from cascades.proof.table_models import separate


@pytest.mark.parametrize(
  ('size', 'depth'), [(2, 5), (3, 4), (4, 3), (9, 2), (9, 3), (3, 9), (5, 12)]
)
def test_rows_of_a_block_differ_and_of_a_draft_where_not_all_fit(size, depth):
  model = table_models.TableModel.injective(size, depth, max_contexts=200)
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


@pytest.mark.parametrize(('size', 'contexts'), [(3, 7), (5, 7), (5, 5), (4, 9)])
def test_a_token_counts_wherever_it_stands(size, contexts):
  model = table_models.TableModel(size, contexts)
  for place in range(2 * contexts):
    index = np.array([place])
    alone = {int(model.context(np.array([x]), index)) for x in range(size)}
    assert len(alone) == size
    # Of five tokens modulo five one is like none at all.
    assert (0 in alone) == (size == contexts)


@pytest.mark.parametrize(
  ('count', 'size'), [(7, 3), (121, 3), (64, 9), (20, 2)]
)
def test_random_rows_differ(count, size):
  for seed in range(4):
    d = law_checks.draw_distributions('random', count, size, seed)
    # Nothing of it is drawn again.
    separate(d.q, d.p, None)
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


def test_a_row_is_found_among_many_that_are_alike():
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.full(5, 0.5), (2, 900)).astype(np.float32)
  # Some of them twice, as where all but the likeliest is dropped.
  q[-40:], p[-40:] = q[:40], p[:40]
  d = methods.Distributions(q, p, q, p)
  pair = methods.METHODS['token_v1'], 0.3
  table = table_models.Table.from_methods([pair], d)
  method = many_methods.from_tables([table], [d])
  off = jax.tree.map(lambda x: x * np.float32(1 + 2e-7), d)
  found = jax.jit(jax.vmap(method.law, (0, None)))(off, jnp.int32(0))
  np.testing.assert_allclose(found, table.law[0], atol=1e-6)
  # Two that are alike, and of which it would say different things.
  other = dataclasses.replace(table, law=table.law[:, ::-1])
  with pytest.raises(ValueError, match='are too similar'):
    many_methods.from_tables([table, other], [d, d])
