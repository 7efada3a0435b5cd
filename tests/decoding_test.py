"""Bookkeeping of the loop, where it ends, and the trees that it reads."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from cascades import decoding


def _of_all(gamma, **options):
  """Some 200 rows, numpy, as many of each method; of one model at gamma 0."""
  if not gamma:
    state = cases.plain((0.9,), rows=200, **options)
  else:
    count = len(cases.OWN)
    options |= dict(gamma=gamma, rows=-(-200 // count))
    state = cases.mixed(cases.MIXED, range(count), **options)
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state)


@pytest.mark.parametrize('gamma', tiers.first([3, 0, 1]))
def test_nothing_comes_after_a_stop_token_and_counts_add_up(gamma):
  free = _of_all(gamma, new=12)
  stopped = _of_all(gamma, new=12, stops=(2, 4))
  ends = 0
  for row in range(len(free.length)):
    whole, cut = (cases.new_tokens(x, row) for x in (free, stopped))
    places = [i for i, token in enumerate(whole) if token in (2, 4)]
    assert cut == whole[: places[0] + 1 if places else None]
    ends += bool(places) and len(cut) % (gamma + 1) != 0
  assert ends or not gamma  # Some of them ended inside a block.
  for state in free, stopped:
    of, emitted = decoding.count(state), state.length - state.prompt_length
    assert (emitted <= 12).all()
    np.testing.assert_array_equal(of.accepted + of.residual + of.bonus, emitted)
    assert (of.accepted <= of.examined).all()
    assert (of.examined <= state.blocks * gamma).all()
    assert (of.deferred <= of.examined).all()
    assert (of.residual <= of.examined - of.accepted).all()


def test_limits_are_kept_row_by_row():
  state = cases.generate(
    new=6, prompts=[(1, 2), (3,)] * 20, leniences=(0.3, 1.0)
  )
  np.testing.assert_array_equal(state.length, state.prompt_length + 6)
  # Nor is a deferral past the limit counted.
  is_emitted = np.arange(state.deferral.shape[-1]) < state.length[..., None]
  deferred = (state.deferral & is_emitted).sum(-1)
  np.testing.assert_array_equal(decoding.count(state).deferred, deferred)
  assert (state.deferral.sum(-1) > deferred).any()


def test_always_accepting_takes_one_call_per_block():
  state = cases.mixed(cases.MIXED, (len(cases.OWN) - 1,), rows=3, new=8)
  np.testing.assert_array_equal(state.blocks, 2)
  np.testing.assert_array_equal(decoding.count(state).accepted, 6)
  np.testing.assert_array_equal(decoding.count(state).bonus, 2)


def test_drafts_share_what_they_begin_with():
  # a c, a d, b e and a c f: the first and the last have two tokens in common.
  a, b, c, d, e, f = range(1, 7)
  tokens = jnp.array([[a, c, 0], [a, d, 0], [b, e, 0], [a, c, f]])
  draft = decoding.full_length_draft(tokens, jnp.zeros((4, 4, 7)), 0)._replace(
    lengths=jnp.array([2, 2, 2, 3])
  )
  found = decoding.build_tree(jnp.int32(9), draft, 12)
  assert found.tokens.tolist()[:7] == [9, a, b, c, d, e, f]
  assert found.tree_mask.levels.tolist()[:7] == [0, 1, 1, 2, 2, 2, 3]
  np.testing.assert_array_equal(
    found.tree_mask.ancestors[:7, :7],
    [
      [1, 0, 0, 0, 0, 0, 0],
      [1, 1, 0, 0, 0, 0, 0],
      [1, 0, 1, 0, 0, 0, 0],
      [1, 1, 0, 1, 0, 0, 0],
      [1, 1, 0, 0, 1, 0, 0],
      [1, 0, 1, 0, 0, 1, 0],
      [1, 1, 0, 1, 0, 0, 1],
    ],
  )
  np.testing.assert_array_equal(
    found.node_indices[:, :3], [[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3]]
  )
  assert found.node_indices[3, 3] == 6
  assert found.draft.lengths.tolist() == [2, 2, 2, 3]
  # Level 2 may have 4 tokens beside the 2 above it, level 3 one more.
  for size, count in ((6, [2, 2, 2, 3]), (5, [1, 1, 1, 1])):
    cut = decoding.build_tree(jnp.int32(9), draft, size)
    assert cut.draft.lengths.tolist() == count
    assert cut.tokens.shape == (size + 1,)


def test_where_drafts_end_hangs_on_what_stands_before_only():
  # Three drafts of three tokens, each 0 or 1, and a tree of four tokens.
  every = list(itertools.product(range(2), repeat=9))
  every = np.array(every).reshape(-1, 3, 3)
  logits = jnp.zeros((4, 3, 2))

  @jax.jit
  @jax.vmap
  def counts(tokens):
    draft = decoding.full_length_draft(tokens, logits, 0)
    return decoding.build_tree(jnp.int32(0), draft, 4).draft.lengths

  levels = np.asarray(counts(every))
  assert (levels == levels[:, :1]).all()
  assert set(levels[:, 0].tolist()) == {1, 2}
  for level in range(3):
    read = {}
    for tokens, count in zip(every, levels[:, 0] > level, strict=True):
      read.setdefault(tuple(tokens[:, :level].ravel()), set()).add(bool(count))
    assert all(len(said) == 1 for said in read.values())
