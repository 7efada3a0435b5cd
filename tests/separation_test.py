"""Tables of proofs: no context of a block is like another."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import many_methods
import numpy as np
import pytest

from cascades import methods
from cascades.proof import law_checks, table_models
from cascades.proof.table_models import separate


@pytest.mark.parametrize(
  ('size', 'depth'), [(2, 1), (2, 5), (3, 3), (3, 4), (4, 3), (5, 3), (9, 2)]
)
def test_texts_of_a_block_have_contexts_of_their_own(size, depth):
  model = table_models.TableModel.injective(size, depth)
  texts = sum(size**length for length in range(depth + 1))
  assert model.contexts == texts
  # Wherever the block begins, and whatever is before it.
  for start in range(depth + 2):
    prompt = [(3 * i + start) % size for i in range(start)]
    pairs = table_models.context_pairs(model, prompt, depth)
    assert len(pairs) == texts * (texts + 1) // 2
    assert len(np.unique(pairs)) == texts


@pytest.mark.parametrize(('size', 'depth'), [(9, 3), (3, 9), (5, 12)])
def test_rows_of_a_draft_differ_where_not_all_texts_fit(size, depth):
  model = table_models.TableModel.injective(size, depth, max_contexts=200)
  assert model.contexts <= 200
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


def test_a_model_with_a_cache_has_the_same_contexts():
  model = table_models.TableModel.injective(4, 2)
  # The logits of each context are its number.
  table = np.arange(model.contexts)[:, None] + np.zeros(4)
  text, index = np.array([3, 0, 1, 2, 2]), np.arange(5)
  seen = index[:, None] >= index
  logits, _ = jax.jit(model)(jnp.asarray(table), text, index, seen)
  want = [model.context_after(text[:i]) for i in range(1, 6)]
  np.testing.assert_array_equal(logits[:, 0], want)


def test_texts_that_share_a_context_are_named():
  with pytest.raises(ValueError, match=r'the same context \d of 7; give'):
    table_models.context_pairs(table_models.TableModel(3), (1, 2), 2)
  # Along a draft it has enough.
  pairs = table_models.context_pairs(
    table_models.TableModel.injective(3, 2), (1, 2), 2, along_drafts=True
  )
  own, others = (pairs[:, 0] == pairs[:, 1]).sum(), len(pairs)
  assert (own, others - own) == (13, 3 + 9 * 2)


def test_distributions_that_are_too_near_are_named():
  q = np.array([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
  p = q[:, ::-1]
  table_models.check_distances(q, p)
  near = p.copy()
  near[2] = [0.105, 0.1, 0.795]
  with pytest.raises(
    ValueError, match=r'context 1 and p of .* 2 differ by 0\.005'
  ):
    table_models.check_distances(q, near)
  table_models.check_distances(q, near, np.array([[0, 1], [0, 2], [2, 2]]))
  with pytest.raises(ValueError, match='p of context 0 and p of context 1'):
    table_models.check_distances(q, p[[0, 0, 2]])


@pytest.mark.parametrize(
  ('count', 'size'), [(7, 3), (121, 3), (64, 9), (20, 2)]
)
def test_random_rows_differ(count, size):
  for seed in range(4):
    d = law_checks.draw_distributions('random', count, size, seed)
    table_models.check_distances(d.q, d.p)
    both = np.concatenate([d.q, d.p])
    np.testing.assert_allclose(both.sum(1), 1)
    for one, other in itertools.combinations(both[:9], 2):
      assert np.abs(one - other).sum() / 2 >= table_models.LEAST_DISTANCE
  with pytest.raises(ValueError, match='120 distributions of 2 tokens do not'):
    law_checks.draw_distributions('random', 60, 2)


def test_only_what_is_too_near_is_drawn_again():
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.ones(4), (2, 30))
  p[3] = q[7]
  new_q, new_p = separate(q, p, lambda rng, n: rng.dirichlet(np.ones(4), n))
  np.testing.assert_array_equal(new_q, q)
  changed = (new_p != p).any(1)
  assert changed[3]
  assert changed.sum() < 5
  model = table_models.TableModel.injective(4, 3)
  keys = jax.random.split(jax.random.key(0))
  tables = table_models.random_tables(model, keys)
  table_models.check_distances(*(np.asarray(jax.nn.softmax(x)) for x in tables))
  for table, key in zip(tables, keys, strict=True):
    kept = np.asarray(table) == np.asarray(model.init_params(key))
    assert kept.all(-1).mean() > 0.9


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
