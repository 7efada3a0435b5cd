"""Several drafts per block: the law is the declared one, whatever they are."""

import functools
import itertools

import decoding_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import verification_test

from cascades import decoding, verification
from cascades.proof import exact

_PROMPT = (0, 2)
# A row for each text of a tree whose drafts have three tokens.
_MODEL = exact.TableModel.injective(3, 3)
_every_scheme = pytest.mark.parametrize(
  'config',
  [*map(verification.VerificationConfig, verification.MULTI_DRAFT)],
  ids=lambda x: x.verification,
)


@functools.cache
def _table(kind='random'):
  config = verification.VerificationConfig('multi_round')
  pairs = verification_test._pairs(config)
  with exact.enable_x64(True):
    rows = verification_test.rows_of(_MODEL, _PROMPT, 3, kind)
    return exact.Table.from_methods(pairs, rows)


@pytest.mark.parametrize(
  ('drafts', 'gamma', 'kind', 'tree_size'),
  tiers.first(
    [
      *((*x, 'random', None) for x in ((1, 2), (2, 1), (2, 2), (3, 1))),
      # Cut, the next level is read where drafts so far have enough in common.
      (2, 2, 'random', 3),
      *((2, 3, 'random', 3), (3, 2, 'random', 4)),
      *itertools.product((1, 2), (1, 2), ('near_equal', 'disjoint'), (None,)),
      *((3, 1, kind, None) for kind in ('near_equal', 'disjoint')),
      # 3^6 trees, whole.
      (3, 2, 'random', None),
    ],
    5,
  ),
)
@_every_scheme
def test_blocks_follow_the_declared_law(config, drafts, gamma, kind, tree_size):
  # Of large trees, the first block and the token after it.
  length = 2 if tree_size or drafts * gamma > 4 else gamma + 1
  given = (_table(kind), config, _MODEL, _PROMPT, length)
  emitted = exact.emitted_law(*given, gamma, drafts, tree_size)
  declared = exact.declared_law(given[0], _MODEL, _PROMPT, length)
  np.testing.assert_allclose(emitted, declared, atol=1e-9)


def _kept(kind, gamma, drafts, rows='random'):
  """Drafts of a block that stay, on average, of each method."""
  config = verification.VerificationConfig(kind)
  given = _table(rows), config, _MODEL, _PROMPT, gamma, drafts
  return verification_test.kept(*given)


@pytest.mark.parametrize('kind', verification.MULTI_DRAFT)
def test_more_drafts_keep_more(kind):
  one, two, three = (_kept(kind, 1, drafts) for drafts in (1, 2, 3))
  assert (two >= one - 1e-12).all()
  assert (three >= two - 1e-12).all()
  assert (three > one + 1e-3).any()


@pytest.mark.parametrize('rows', ['random', 'near_equal', 'disjoint'])
@pytest.mark.parametrize(
  ('gamma', 'drafts'), tiers.first([(2, 2), (1, 3), (3, 1), (1, 2)], 3)
)
def test_from_the_leaves_at_least_as_many_stay(gamma, drafts, rows):
  found = _kept('traversal', gamma, drafts, rows)
  rounds = _kept('multi_round', gamma, drafts, rows)
  assert (found >= rounds - 1e-12).all()
  if rows == 'random' and gamma > 1:
    assert (found > rounds + 1e-4).any()


@pytest.mark.parametrize('rows', ['random', 'near_equal', 'disjoint'])
def test_from_the_leaf_of_one_draft_it_is_the_block(rows):
  of_kind = []
  for kind in 'traversal', 'block':
    found = {}
    config = verification.VerificationConfig(kind)
    given = _table(rows), config, _MODEL, _PROMPT, 3
    for block, chance in exact.blocks(*given):
      found[block] = found.get(block, 0) + chance
    of_kind.append(found)
  one, other = of_kind
  assert one.keys() == other.keys()
  for block, chance in one.items():
    np.testing.assert_allclose(chance, other[block], atol=1e-12)


@pytest.mark.parametrize(
  ('drafts', 'bonus'),
  tiers.first([(2, 'target'), (3, 'target'), (2, 'verifier')], 2),
)
@pytest.mark.parametrize('kind', verification.MULTI_DRAFT)
def test_verify_emits_what_the_enumeration_says(kind, drafts, bonus):
  config = verification.VerificationConfig(kind, bonus=bonus)
  # Drafts of one token, or, of two drafts, of two.
  given = _MODEL, _PROMPT, 3, config, drafts
  verification_test.check_verify(*given, 4 - drafts, 3_000, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'options',
  [
    dict(gamma=2, hows=decoding_test.SAMPLING),
    dict(gamma=3, tree_size=4, hows=('plain', 'forbidden, truncated')),
  ],
  ids=['whole', 'cut'],
)
@_every_scheme
def test_the_loop_emits_the_declared_law(config, options):
  decoding_test.check_laws(config, drafts=3, **options)


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


_CUT = [('multi_round', 9), ('match', 9), ('k_seq', 9)]
_WHOLE = [(kind, None) for kind in verification.MULTI_DRAFT]


@pytest.mark.parametrize(('kind', 'size'), tiers.first([*_CUT, *_WHOLE]))
def test_a_tree_of_drafts_is_read_as_each_draft_alone(kind, size):
  # Greedy, strict, from a drafter that knows the verifier's favourite among
  # others: the answer is the verifier's own, whichever draft is kept.
  prompts = [(1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4)]
  near = decoding_test._DRAFTER + 1.5 * decoding_test._VERIFIER
  run = functools.partial(
    decoding_test._generate,
    'speed',
    (0.0,),
    prompts=prompts,
    new=12,
    temperature=1.0,
    drafter_table=near,
  )
  config = verification.VerificationConfig(kind)
  state = run(gamma=3, drafts=4, tree_size=size, config=config)
  assert decoding.count(state).accepted.sum() > state.blocks.sum()
  for i in range(len(prompts)):
    row = jax.tree.map(lambda x, i=i: x[i, 0], state)
    tokens = row.tokens[: row.length]
    for at in range(int(row.prompt_length), int(row.length)):
      logits = decoding_test._MODEL.logits(decoding_test._VERIFIER, tokens[:at])
      want = jax.nn.log_softmax(logits)[tokens[at]]
      assert abs(row.logprob[at] - want) < 1e-5
