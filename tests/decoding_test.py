"""The loop, on table models whose laws are known."""

import dataclasses
import functools
import itertools

import conftest
import jax
import jax.numpy as jnp
import many_methods
import numpy as np
import pytest
import tiers

from cascades import decoding, drafters, methods, verification
from cascades.methods import processing
from cascades.proof import exact
from cascades.verification_config import BONUSES, GATES, SINGLE_DRAFT

_V, _NEW = 5, 3
_PROMPT = (1, 2, 3)
# A row for each text of a block of three drafts, and none like another.
_MODEL = exact.TableModel.injective(_V, 3)
_VERIFIER, _DRAFTER = exact.random_tables(
  _MODEL, [jax.random.key(83), jax.random.key(84)]
)
exact.check_distances(
  *(np.asarray(jax.nn.softmax(x)) for x in (_DRAFTER, _VERIFIER)),
  exact.context_pairs(_MODEL, _PROMPT, 3),
)


# What all small runs have in common, so that they are one program: rows are
# filled up to so many, caches have room for so many new tokens.
_ROWS, _ROOM = 256, 12


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
  config=verification.STANDARD,
  drafter_table=_DRAFTER,
  drafts=1,
  tree_size=None,
  drafter=None,
  sampling=None,
  filled=_ROWS,
  room=_ROOM,
  return_logits=True,
  **processed,
):
  """Final states of `rows` rows, numpy; an array of leniences: one for each."""
  if prompts is None:
    prompts = [_PROMPT] * rows
  if keys is None:
    keys = jax.random.split(jax.random.key(seed), len(prompts))
  paired = isinstance(leniences, np.ndarray)
  shape = (len(prompts),) if paired else (len(prompts), len(leniences))
  # Each prompt at each lenience, and the first of them again and again.
  of_prompt = np.repeat(np.arange(len(prompts)), 1 if paired else shape[1])
  leniences = leniences if paired else np.tile(leniences, shape[0])
  count = len(of_prompt)
  whole = np.arange(-(-count // filled) * filled)
  whole[whole >= count] = 0
  if drafter is None:
    drafter = drafters.ModelDrafter(_MODEL) if gamma else drafters.NoDrafter()
  states = exact.decode_curve(
    decoding.StepConfig(
      decoding.Models(_MODEL, drafter),
      methods.get_method(method),
      gamma,
      config,
      drafts,
      tree_size,
    ),
    (_VERIFIER, drafter_table),
    exact.BatchRequest(
      [prompts[i] for i in of_prompt[whole]],
      keys[of_prompt[whole]],
      np.asarray(leniences)[whole],
      new,
    ),
    sampling or processed_by(temperature, **processed),
    stop_tokens=np.append(stops, [-1] * (2 - len(stops))),
    capacity=room,
    return_logits=return_logits,
  )
  return jax.tree.map(lambda x: x[:count].reshape(shape + x.shape[1:]), states)


def greedy(prompt, new, table=_VERIFIER):
  """Returns the greedy tokens of a table model, without the loop."""
  table, tokens = np.asarray(table), list(prompt)
  for _ in range(new):
    context = _MODEL.context(np.array(tokens), np.arange(len(tokens)))
    tokens.append(int(table[context].argmax()))
  return tokens[len(prompt) :]


def _row(state, row):
  """Returns the tokens that one of [rows] emitted."""
  row = jax.tree.map(lambda x: x[row], state)
  return row.tokens[row.prompt_length : row.length].tolist()


def _emitted(state, row=0):
  return _row(jax.tree.map(lambda x: x[:, 0], state), row)


# What every method is run at: neither of its limits.
_PAIRS = tuple(
  (method, 2.0 if method.name == 'top_k' else 0.3)
  for method in methods.METHODS.values()
)
# Methods of each kind: rules for the whole, for tokens, a target that is
# searched for, an acceptance that is not its law's, lenient decoding.
_REAL = (
  *('diff', 'opt', 'token_v1', 'token_v2', 'token_v3'),
  *('lossy', 'typical', 'speed'),
)

_NOTHING = np.zeros(_V, bool)


def processed_by(temperature=1.0, top_k=_V, top_p=1.0, forbidden=_NOTHING):
  """With all that a sampler may be asked for, so that it compiles once."""
  return processing.SamplingParams(
    temperature=np.float32(temperature),
    top_k=np.int32(top_k),
    top_p=np.float32(top_p),
    forbidden=np.asarray(forbidden),
  )


_ONE = np.arange(_V) == 1
_TWO = np.isin(np.arange(_V), [0, 3])
# How logits are processed.
SAMPLING = {
  'plain': processed_by(),
  'truncated': processed_by(temperature=0.8, top_k=3, top_p=0.9),
  'greedy': processed_by(temperature=0.0),
  'nearly greedy': processed_by(temperature=1e-9),
  'forbidden': processed_by(temperature=1.3, forbidden=_ONE),
  'forbidden, truncated': processed_by(
    temperature=0.8, top_k=2, top_p=0.9, forbidden=_TWO
  ),
  'forbidden, greedy': processed_by(temperature=0.0, forbidden=_TWO),
}
# Of these, what is enough where another test has all.
FEW = 'plain', 'greedy', 'forbidden, truncated'


def pairs_of(config, only=()):
  """The methods that a verification config takes."""
  pairs = []
  for method, lenience in _PAIRS:
    if only and method.name not in only:
      continue
    try:
      config.check(method)
    except ValueError:
      continue
    pairs.append((method, lenience))
  return pairs


def seen_of_model(config, sampling):
  """Returns the distributions of two table models in each context."""
  return exact.table_distributions(_VERIFIER, _DRAFTER, sampling, config.gate)


def _law(table, config, gamma):
  """Enumerates the law of the loop, [pairs] + [V] * _NEW."""
  if config.bonus == 'target':
    return exact.declared_law(table, _MODEL, _PROMPT, _NEW)
  return exact.emitted_law(table, config, _MODEL, _PROMPT, _NEW, gamma)


def check_laws(
  config,
  gamma,
  *,
  drafts=1,
  tree_size=None,
  bound_drafter=None,
  seen=seen_of_model,
  hows=FEW,
):
  """Samples every method through one loop, in one batch.

  `bound_drafter` drafts, or the usual model, and `seen(config, sampling)` is
  what the loop sees in each context. No method is at a limit; they share the
  rows evenly.
  """
  pairs, rows = pairs_of(config), 48_000
  every = [seen(config, SAMPLING[name]) for name in hows]
  tables = [exact.Table.from_methods(pairs, d) for d in every]
  method = many_methods.from_tables(tables, every)
  given = dict(config=config, drafts=drafts, tree_size=tree_size)
  given |= dict(room=_NEW, return_logits=False)
  if bound_drafter:
    given |= dict(
      drafter=bound_drafter.drafter, drafter_table=bound_drafter.params
    )
  each = np.arange(rows) % len(pairs)
  for name, table in zip(hows, tables, strict=True):
    sampling = SAMPLING[name]
    with conftest.optimised():
      drawn = [
        _generate(
          method, each, gamma, rows, sampling=sampling, seed=seed, **given
        )
        for seed in range(3 if name == 'plain' else 1)
      ]
    laws = _law(table, config, gamma)
    check_samples(drawn, each, pairs, laws, sampling, name)


def check_samples(drawn, each, pairs, laws, sampling, name):
  """That the rows of each method follow its law, and all of them together."""
  first = len(_PROMPT)
  tokens = np.concatenate([x.tokens[:, first : first + _NEW] for x in drawn])
  each = np.tile(each, len(drawn))
  assert not np.asarray(sampling.forbidden)[tokens].any()
  squares, freedom = 0.0, 0
  for i, (one, _) in enumerate(pairs):
    assert laws[i].sum() == pytest.approx(1, abs=1e-5)
    z = exact.z_scores(tokens[each == i], laws[i])
    assert np.abs(z).max() < 5, (name, one.name, z)
    squares, freedom = squares + (z**2).sum(), freedom + len(z) - 1
  # A fault that is small in each of them is not in all.
  assert squares - freedom < 5 * np.sqrt(2 * freedom) + 5, (name, squares)


def _cases():
  """Schemes, gammas and processings: the standard ones first."""
  standard = [verification.VerificationConfig(kind) for kind in SINGLE_DRAFT]
  for config in standard:
    yield config, 3, SAMPLING if config == verification.STANDARD else FEW
  yield from ((config, 3, SAMPLING) for config in standard[1:])
  yield from ((config, 1, FEW) for config in standard)
  for case in itertools.product(SINGLE_DRAFT, GATES, BONUSES):
    config = verification.VerificationConfig(*case)
    if config not in standard:
      yield from ((config, gamma, FEW) for gamma in (1, 3))


def _named(x):
  is_config = isinstance(x, verification.VerificationConfig)
  return '-'.join(dataclasses.astuple(x)) if is_config else None


@pytest.mark.parametrize(
  ('config', 'gamma', 'hows'),
  tiers.first(_cases(), len(SINGLE_DRAFT)),
  ids=_named,
)
def test_the_emitted_law_is_the_declared_law(config, gamma, hows):
  check_laws(config, gamma, hows=hows)


# Methods' own functions, and not what they said before, in one program: strict,
# in between, and where every draft stays.
_STRICT = 'speed', 'chow', 'diff', 'token_v1', 'token_v3'
_ALWAYS = methods.METHODS['drafter_only'], 0.0
_OWN = (
  *((methods.METHODS[name], methods.METHODS[name].strict) for name in _STRICT),
  *pairs_of(verification.STANDARD, _REAL),
  _ALWAYS,
)
_MIXED = many_methods.from_functions(_OWN)


def _many(*args, **options):
  """Final states at leniences that are places in _OWN."""
  with conftest.optimised():
    return _generate(_MIXED, *args, filled=8192, **options)


def test_the_emitted_law_of_functions_that_run_in_the_loop():
  each = np.arange(8192) % len(_REAL)
  pairs = pairs_of(verification.STANDARD, _REAL)
  for name in ('plain', 'forbidden', 'forbidden, truncated'):
    sampling = SAMPLING[name]
    d = seen_of_model(verification.STANDARD, sampling)
    laws = _law(exact.Table.from_methods(pairs, d), verification.STANDARD, 3)
    drawn = [
      _many(each + len(_STRICT), rows=8192, sampling=sampling, seed=i)
      for i in range(20)
    ]
    check_samples(drawn, each, pairs, laws, sampling, name)
    if name == 'plain':
      # The law of one method does not pass for another's, nor for its own at
      # another lenience.
      one, other = (
        [method.name for method, _ in pairs].index(x)
        for x in ('token_v3', 'diff')
      )
      tokens = np.concatenate([x.tokens[each == one] for x in drawn])
      further = exact.Table.from_methods([(pairs[one][0], 0.8)], d)
      for law in (laws[other], _law(further, verification.STANDARD, 3)[0]):
        assert np.abs(exact.z_scores(tokens[:, 3 : 3 + _NEW], law)).max() > 20


@pytest.mark.parametrize('bonus', BONUSES)
def test_a_step_tells_the_law_of_its_tokens(bonus):
  lenient, rows, gamma = methods.METHODS['speed'], 32, 2
  config = decoding.StepConfig(
    decoding.Models(_MODEL, drafters.ModelDrafter(_MODEL)),
    lenient,
    gamma,
    verification.VerificationConfig(bonus=bonus),
  )
  params = decoding.Params(_VERIFIER, _DRAFTER)
  first = len(_PROMPT)
  asked = decoding.Prompts(
    np.tile(_PROMPT, (rows, 1)),
    np.full(rows, first),
    jax.random.split(jax.random.key(5), rows),
    np.full(rows, first + gamma + 1),
  )
  state = decoding.prefill(
    params, asked, models=config.models, cache_length=2 * first + gamma
  ).replace(lenience=np.full(rows, 0.3, np.float32))
  run = functools.partial(decoding.step, step_config=config, with_law=True)
  sampling, never = processed_by(temperature=2.0), jnp.array([-1])
  after, stats = jax.vmap(
    lambda row: run(row, params, sampling, never), axis_name=decoding.ROWS
  )(state)
  d = exact.table_distributions(_VERIFIER, _DRAFTER, sampling)
  kept, tokens = (
    np.asarray(stats.verdict.num_accepted),
    np.asarray(after.tokens),
  )
  assert {0, gamma} <= {*kept}
  for row in range(rows):
    for i in range(kept[row] + 1):
      context = _MODEL.context_after(tokens[row, : first + i])
      at = jax.tree.map(lambda x, c=context: x[c], d)
      is_verifiers = i == gamma and bonus == 'verifier'
      law = at.p if is_verifiers else lenient.law(at, 0.3)
      np.testing.assert_allclose(stats.law[row, i], law, atol=1e-6)


def test_where_none_is_lenient_a_drafter_makes_a_pass_less():
  speed = methods.METHODS['speed']
  pairs = [(speed, 0.0), (speed, 0.5)]
  d = seen_of_model(verification.STANDARD, SAMPLING['plain'])
  laws = _law(exact.Table.from_methods(pairs, d), verification.STANDARD, 3)
  # A batch of both kinds, and one that is strict throughout.
  for kinds in (np.arange(8192) % 2, np.zeros(8192, int)):
    with conftest.optimised():
      drawn = [
        _generate('speed', kinds * 0.5, rows=8192, filled=8192, seed=seed)
        for seed in range(8)
      ]
    there = np.unique(kinds)
    some = [pairs[i] for i in there]
    given = SAMPLING['plain'], 'plain'
    check_samples(drawn, kinds, some, laws[there], *given)
    counts = decoding.count(drawn[0])
    np.testing.assert_array_equal(
      counts.drafter_calls, (3 + kinds) * counts.blocks
    )


# Of the verifier alone.
_alone = functools.partial(_generate, 'token_v3', gamma=0, filled=4096)


def test_plain_decoding_is_the_verifier():
  # Whatever the method and its lenience.
  drawn = [_alone((0.9,), rows=4096, seed=seed) for seed in range(5)]
  pairs = [(methods.METHODS['verifier_only'], 0.0)]
  table = exact.Table.from_methods(
    pairs, seen_of_model(verification.STANDARD, SAMPLING['plain'])
  )
  law = _law(table, verification.STANDARD, 0)
  first = len(_PROMPT)
  tokens = np.concatenate([x.tokens[:, 0] for x in drawn])
  z = exact.z_scores(tokens[:, first : first + _NEW], law[0])
  assert np.abs(z).max() < 5


@pytest.mark.parametrize('gamma', tiers.first([3, 1]))
def test_greedy_strict_is_the_verifier_alone(gamma):
  # A drafter that is right now and then: both branches are taken.
  near = _VERIFIER + 0.7 * _DRAFTER
  prompts = [(1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4)]
  greedy = dict(new=12, temperature=0, prompts=prompts, drafter_table=near)
  alone = _alone(**greedy)
  together = _many(range(len(_STRICT)), gamma=gamma, **greedy)
  for row, i in np.ndindex(len(prompts), len(_STRICT)):
    written = jax.tree.map(lambda x, i=i: x[:, i], together)
    assert _row(written, row) == _emitted(alone, row)
  assert (decoding.count(together).accepted.sum(0) > 5).all()
  assert (decoding.count(together).residual.sum(0) > 5).all()


def test_rows_do_not_depend_on_their_batch():
  prompts = [(1,), (2, 4, 4), (3, 3, 3, 1, 0, 2), (0, 1), (4, 4)]
  keys = jax.random.split(jax.random.key(3), len(prompts))
  run = functools.partial(_generate, gamma=3, new=9)
  together = run(prompts=prompts, keys=keys)
  for row, prompt in enumerate(prompts):
    single = run(prompts=[prompt], keys=keys[row : row + 1])
    assert _emitted(single) == _emitted(together, row)
    alone, beside = map(decoding.count, (single, together))
    for name in alone._fields:
      assert getattr(alone, name)[0] == getattr(beside, name)[row]
  order = [3, 0, 4, 2, 1]
  permuted = run(
    prompts=[prompts[i] for i in order], keys=keys[jnp.array(order)]
  )
  for row, i in enumerate(order):
    assert _emitted(permuted, row) == _emitted(together, i)


def _of_all(gamma, **options):
  """Some 200 rows, numpy, as many of each method; of one model at gamma 0."""
  if not gamma:
    state = _alone((0.9,), rows=200, **options)
  else:
    copies = -(-200 // len(_OWN))
    state = _many(range(len(_OWN)), gamma=gamma, rows=copies, **options)
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state)


@pytest.mark.parametrize('gamma', tiers.first([3, 0, 1]))
def test_nothing_comes_after_a_stop_token(gamma):
  free = _of_all(gamma, new=12)
  stopped = _of_all(gamma, new=12, stops=(2, 4))
  ends = 0
  for row in range(len(free.length)):
    whole, cut = _row(free, row), _row(stopped, row)
    places = [i for i, token in enumerate(whole) if token in (2, 4)]
    assert cut == whole[: places[0] + 1 if places else None]
    ends += bool(places) and len(cut) % (gamma + 1) != 0
  assert ends or not gamma  # Some of them ended inside a block.


@pytest.mark.parametrize('gamma', tiers.first([3, 0, 1]))
@pytest.mark.parametrize('stops', [(-1,), (2,)])
def test_counts_add_up(gamma, stops):
  state = _of_all(gamma, new=11, stops=stops)
  emitted, of = state.length - state.prompt_length, decoding.count(state)
  assert (emitted <= 11).all()
  kinds = np.stack([of.accepted, of.residual, of.bonus], 1)
  np.testing.assert_array_equal(kinds.sum(1), emitted)
  assert (of.accepted <= of.examined).all()
  assert (of.examined <= state.blocks * gamma).all()
  assert (of.deferred <= of.examined).all()
  assert (of.residual <= of.examined - of.accepted).all()
  for row, want in enumerate(kinds):
    source = state.source[row][state.prompt_length[row] : state.length[row]]
    np.testing.assert_array_equal(np.bincount(source, minlength=4), [0, *want])


def test_limits_are_kept_row_by_row():
  state = _generate(new=6, prompts=[(1, 2), (3,)] * 20, leniences=(0.3, 1.0))
  np.testing.assert_array_equal(state.length, state.prompt_length + 6)
  # Nor is a deferral past the limit counted.
  is_emitted = np.arange(state.deferral.shape[-1]) < state.length[..., None]
  deferred = (state.deferral & is_emitted).sum(-1)
  np.testing.assert_array_equal(decoding.count(state).deferred, deferred)
  assert (state.deferral.sum(-1) > deferred).any()


@pytest.mark.parametrize('run', [_alone, _generate])
def test_logits_are_the_verifiers_for_emitted_tokens(run):
  state = run(rows=5, new=9)
  for row in range(5):
    tokens = state.tokens[row, 0]
    for i in range(9):
      length = len(_PROMPT) + i
      np.testing.assert_array_equal(
        state.logits[row, 0, i], _MODEL.logits(_VERIFIER, tokens[:length])
      )


def test_always_accepting_takes_one_call_per_block():
  state = _many((_OWN.index(_ALWAYS),), rows=3, new=8)
  np.testing.assert_array_equal(state.blocks, 2)
  np.testing.assert_array_equal(decoding.count(state).accepted, 6)
  np.testing.assert_array_equal(decoding.count(state).bonus, 2)


@pytest.mark.parametrize('kind', verification.VERIFICATIONS)
def test_without_drafts_the_verifier_writes_however_blocks_are_verified(kind):
  # A rule that defers everything, of which nothing was examined.
  state = _generate(
    'chow',
    (-1.0,),
    gamma=0,
    temperature=0.0,
    config=verification.VerificationConfig(kind),
  )
  said = _emitted(state)
  assert said == greedy(_PROMPT, len(said))
  counts = decoding.count(state)
  assert counts.bonus.sum() == len(said)
  assert not counts.deferred.any()
  assert not counts.residual.any()
  assert not counts.drafted.any()
