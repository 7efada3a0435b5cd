"""The loop, on table models whose laws are known."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import (
  decoding,
  drafters,
  methods,
  sampling,
  testing,
  verification,
)

_V, _NEW = 5, 3
_MODEL = testing.TableModel(_V)
_VERIFIER = _MODEL.init_params(jax.random.key(1))
_DRAFTER = _MODEL.init_params(jax.random.key(2))
_PROMPT = (1, 2, 3)


def _generate(
  method='token_v3',
  leniences=(0.3,),
  gamma=3,
  rows=1,
  new=_NEW,
  temperature=1.0,
  prompts=None,
  keys=None,
  stops=(-1,),
  seed=0,
  return_logits=False,
  scheme=verification.STANDARD,
  drafter_table=_DRAFTER,
  drafts=1,
  tree_size=None,
  drafter=None,
  **how,
):
  """Final states of `rows` rows, numpy."""
  if prompts is None:
    prompts = [_PROMPT] * rows
  if keys is None:
    keys = jax.random.split(jax.random.key(seed), len(prompts))
  return testing.decode_curve(
    (_VERIFIER, drafter_table),
    prompts,
    keys,
    leniences,
    new,
    sampling.Processing(temperature=np.float32(temperature), **how),
    stops,
    verifier=_MODEL,
    drafter=drafter
    or (drafters.ModelDrafter(_MODEL) if gamma else drafters.NoDrafter(_V)),
    method=methods.get_method(method),
    gamma=gamma,
    scheme=scheme,
    drafts=drafts,
    tree_size=tree_size,
    return_logits=return_logits,
  )


def _emitted(state, row=0, copy=0):
  row = jax.tree.map(lambda x: x[row, copy], state)
  return row.tokens[row.prompt_length : row.length].tolist()


# What every method is run at: neither of its limits.
_PAIRS = tuple(
  (method, 2.0 if method.name == 'top_k' else 0.3)
  for method in methods.METHODS.values()
)


@functools.cache
def _together(scheme, only=()):
  """The methods that a scheme takes, as one; and which they are."""
  pairs = []
  for method, lenience in _PAIRS:
    if only and method.name not in only:
      continue
    try:
      scheme.check(method)
    except ValueError:
      continue
    pairs.append((method, lenience))
  sequential = scheme.verification == 'sequential'
  return testing.one_of(pairs, with_rules=sequential), tuple(pairs)


def _law(pairs, scheme, gamma, how):
  """What the loop should emit, [pairs] + [V] * _NEW, by enumeration."""
  d = testing.table_distributions(_VERIFIER, _DRAFTER, how, scheme.gate)
  table = testing.Table.of(pairs, d)
  if scheme.bonus == 'target':
    return testing.declared_law(table, _MODEL, _PROMPT, _NEW)
  return testing.emitted_law(table, scheme, _MODEL, _PROMPT, _NEW, gamma)


def check_laws(
  scheme,
  gamma,
  rows=20_000,
  *,
  drafts=1,
  tree_size=None,
  equipped=None,
  law=_law,
  only=(),
  **how,
):
  """Samples every method through the loop, which is compiled once.

  Args:
    scheme: How.
    gamma: Tokens per block.
    rows: Samples.
    drafts: Per block.
    tree_size: As for `decoding.decode`.
    equipped: What drafts; None for the usual model.
    law: Of (pairs, scheme, gamma, how), what should come out.
    only: Names of methods; none for all.
    **how: As for `sampling.Processing`.
  """
  how = dict(top_k=np.int32(_V), top_p=np.float32(1)) | how
  method, pairs = _together(scheme, only)
  law = law(pairs, scheme, gamma, sampling.Processing(**how))
  given = dict(scheme=scheme, drafts=drafts, tree_size=tree_size)
  if equipped:
    given |= dict(drafter=equipped.drafter, drafter_table=equipped.params)
  first = len(_PROMPT)
  for i, (one, _) in enumerate(pairs):
    state = _generate(method, (i,), gamma, rows, **given, **how)
    tokens = state.tokens[:, 0, first : first + _NEW]
    assert law[i].sum() == pytest.approx(1, abs=1e-5)
    z = np.abs(testing.z_scores(tokens, law[i])).max()
    assert z < 5, (one.name, z)


def _schemes():
  for kind, gate, bonus in itertools.product(
    verification.SINGLE, verification.GATES, verification.BONUSES
  ):
    # A sequential cascade has no bonus.
    if kind != 'sequential' or bonus == 'target':
      yield verification.Scheme(kind, gate, bonus)


@pytest.mark.parametrize('gamma', [1, 3])
@pytest.mark.parametrize(
  'scheme', _schemes(), ids=lambda x: '-'.join(dataclasses.astuple(x))
)
def test_the_emitted_law_is_the_declared_law(scheme, gamma):
  # Fewer rows where only an option differs.
  standard = scheme == verification.Scheme(scheme.verification)
  rows = 20_000 if standard else 6_000
  check_laws(scheme, gamma, rows, temperature=1.0)
  truncated = dict(top_k=np.int32(3), top_p=np.float32(0.9))
  check_laws(scheme, gamma, rows, temperature=0.8, **truncated)
  check_laws(scheme, gamma, rows, temperature=0.0)


@pytest.mark.parametrize('method', ['speed', 'opt', 'token_v2'])
def test_forbidden_tokens_are_never_emitted(method):
  how = dict(
    temperature=1.3, forbidden=np.array([False, True, False, False, False])
  )
  state = _generate(method, (0.3,), 2, 20_000, **how)
  pairs = [(methods.METHODS[method], 0.3)]
  how = sampling.Processing(**how)
  law = _law(pairs, verification.STANDARD, 2, how)[0]
  first = len(_PROMPT)
  tokens = state.tokens[:, 0, first : first + _NEW]
  assert np.abs(testing.z_scores(tokens, law)).max() < 5
  assert (tokens != 1).all()


def test_plain_decoding_is_the_verifier():
  state = _generate('token_v3', (0.9,), 0, 20_000)
  pairs = [(methods.METHODS['verifier_only'], 0.0)]
  law = _law(pairs, verification.STANDARD, 0, sampling.Processing())
  first = len(_PROMPT)
  tokens = state.tokens[:, 0, first : first + _NEW]
  assert np.abs(testing.z_scores(tokens, law[0])).max() < 5


def test_the_law_test_can_fail():
  # The law of one method does not pass for another's.
  state = _generate('token_v3', (0.3,), 3, 20_000)
  pairs = [(methods.METHODS['token_v3'], 0.8)]
  law = _law(pairs, verification.STANDARD, 3, sampling.Processing())[0]
  first = len(_PROMPT)
  tokens = state.tokens[:, 0, first : first + _NEW]
  assert np.abs(testing.z_scores(tokens, law)).max() > 20


@pytest.mark.parametrize('gamma', [1, 4])
def test_greedy_strict_is_the_verifier_alone(gamma):
  # A drafter that is right now and then: both branches are taken.
  near = _VERIFIER + 0.7 * _DRAFTER
  prompts = [(1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4)]
  run = functools.partial(
    _generate, new=12, temperature=0, prompts=prompts, drafter_table=near
  )
  alone = run('speed', (0.0,), 0)
  for method in ('speed', 'chow', 'diff', 'token_v1', 'token_v3'):
    together = run(method, (methods.METHODS[method].strict,), gamma)
    for row in range(len(prompts)):
      assert _emitted(together, row) == _emitted(alone, row)
    assert together.accepted.sum() > 5
    assert together.residual.sum() > 5


def test_rows_do_not_depend_on_their_batch():
  prompts = [(1,), (2, 4, 4), (3, 3, 3, 1, 0, 2), (0, 1), (4, 4)]
  keys = jax.random.split(jax.random.key(3), len(prompts))
  run = functools.partial(_generate, gamma=3, new=9)
  together = run(prompts=prompts, keys=keys)
  for row, prompt in enumerate(prompts):
    single = run(prompts=[prompt], keys=keys[row : row + 1])
    assert _emitted(single) == _emitted(together, row)
    for name in ('blocks', 'examined', 'accepted', 'residual', 'bonus'):
      assert getattr(single, name)[0] == getattr(together, name)[row]
  order = [3, 0, 4, 2, 1]
  permuted = run(
    prompts=[prompts[i] for i in order], keys=keys[jnp.array(order)]
  )
  for row, i in enumerate(order):
    assert _emitted(permuted, row) == _emitted(together, i)


def test_a_curve_is_its_points():
  leniences = (-1.0, 0.2, 0.6, 1.0)
  curve = _generate(leniences=leniences, rows=4, new=9)
  for copy, lenience in enumerate(leniences):
    point = _generate(leniences=(lenience,), rows=4, new=9)
    for row in range(4):
      assert _emitted(point, row) == _emitted(curve, row, copy)


def test_nothing_is_traced_again_when_a_number_changes():
  _generate(rows=3, new=7, top_k=np.int32(3))
  sizes = decoding.prefill._cache_size(), decoding.decode._cache_size()
  _generate(
    rows=3,
    new=7,
    leniences=(0.9,),
    seed=5,
    temperature=0.3,
    prompts=[(4,), (1, 1), (2, 0, 2)],
    stops=(2,),
    top_k=np.int32(2),
  )
  assert sizes == (
    decoding.prefill._cache_size(),
    decoding.decode._cache_size(),
  )


@pytest.mark.parametrize('gamma', [0, 1, 4])
def test_nothing_comes_after_a_stop_token(gamma):
  free = _generate('diff', (0.3,), gamma, 200, new=12)
  stopped = _generate('diff', (0.3,), gamma, 200, new=12, stops=(2, 4))
  ends = 0
  for row in range(200):
    whole, cut = _emitted(free, row), _emitted(stopped, row)
    places = [i for i, token in enumerate(whole) if token in (2, 4)]
    assert cut == whole[: places[0] + 1 if places else None]
    ends += bool(places) and len(cut) % (gamma + 1) != 0
  assert ends or not gamma  # Some of them ended inside a block.


@pytest.mark.parametrize('gamma', [0, 1, 4])
@pytest.mark.parametrize('stops', [(-1,), (2,)])
def test_counts_add_up(gamma, stops):
  state = _generate('token_v1', (0.3,), gamma, 200, new=11, stops=stops)
  state = jax.tree.map(lambda x: x[:, 0], state)
  emitted = state.length - state.prompt_length
  assert (emitted <= 11).all()
  np.testing.assert_array_equal(
    state.accepted + state.residual + state.bonus, emitted
  )
  assert (state.accepted <= state.examined).all()
  assert (state.examined <= state.blocks * gamma).all()
  assert (state.deferred <= state.examined).all()
  np.testing.assert_array_equal(
    np.minimum(state.examined - state.accepted, state.residual),
    state.residual,
  )
  for row in range(200):
    source = state.source[row][state.prompt_length[row] : state.length[row]]
    counts = np.bincount(source, minlength=4)
    want = 0, state.accepted[row], state.residual[row], state.bonus[row]
    np.testing.assert_array_equal(counts, want)


def test_limits_are_kept_row_by_row():
  prompts = [(1, 2), (3,)]
  state = _generate(gamma=4, new=6, prompts=prompts, leniences=(1.0,))
  assert [len(_emitted(state, row)) for row in (0, 1)] == [6, 6]


@pytest.mark.parametrize('gamma', [0, 2])
def test_logits_are_the_verifiers_for_emitted_tokens(gamma):
  state = _generate(gamma=gamma, rows=5, new=9, return_logits=True)
  for row in range(5):
    tokens = state.tokens[row, 0]
    for i in range(9):
      length = len(_PROMPT) + i
      np.testing.assert_array_equal(
        state.logits[row, 0, i], _MODEL.logits(_VERIFIER, tokens[:length])
      )


def test_always_accepting_takes_one_call_per_block():
  state = _generate('drafter_only', gamma=4, rows=3, new=10)
  np.testing.assert_array_equal(state.blocks, 2)
  np.testing.assert_array_equal(state.accepted, 8)
  np.testing.assert_array_equal(state.bonus, 2)
