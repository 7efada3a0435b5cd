"""Planted faults: each turns a test of the contract red.

A fault is an object of the library that is patched, or one that is given in its
place; the tests that must see it pass on the library as it is.
"""

import dataclasses
import importlib

import batch_independence_test as batch
import cases
import jax
import jax.numpy as jnp
import law_test as law
import methods_test
import pytest
import strict_is_verifier_test as strict
import tiers

from cascades import drafters, methods, verification

_Config = verification.VerificationConfig


class _Greedy(drafters.ModelDrafter):
  """It says its favourites, and gives the logits of a draw."""

  def propose(self, params, state, context, **block):
    sampling = dataclasses.replace(context.sampling, temperature=jnp.float32(0))
    context = context._replace(sampling=sampling)
    return super().propose(params, state, context, **block)


def _rest(**fields):
  """Wraps a function: fields of its result, from the result and arguments."""

  def wrap(function):
    def faulty(*args, **kwargs):
      result = function(*args, **kwargs)
      changes = {k: f(result, *args) for k, f in fields.items()}
      return result._replace(**changes)

    return faulty

  return wrap


def _given(change):
  """Wraps a function: other arguments."""
  return lambda function: lambda *args, **kw: function(*change(*args), **kw)


def _entry(**fields):
  """Wraps a method or a verification: other fields, made of it."""
  return lambda entry: dataclasses.replace(
    entry, **{field: make(entry) for field, make in fields.items()}
  )


def _only(name, **fields):
  """Wraps the methods that are cases: one of them, which is faulty."""
  return lambda _: ((_entry(**fields)(methods.METHODS[name]), 0.3),)


def _keys_of_places(params, prompts):
  places = jnp.arange(len(prompts.keys))
  keys = jax.vmap(jax.random.fold_in)(prompts.keys, places)
  return params, prompts._replace(keys=keys)


def _late_logprobs(before, after, stats):
  return before, after, stats._replace(logprobs=jnp.roll(stats.logprobs, 1))


def _never_stops(state, tokens, num_accepted, stops):
  return state, tokens, num_accepted, 0 * stops - 1


def _early_rows(read):
  return lambda *x, **kw: (
    lambda logits, *rest: (jnp.roll(logits, 1, 0), *rest)
  )(*read(*x, **kw))


def _open_mask(tree, *_):
  mask = tree.tree_mask
  return mask._replace(ancestors=mask.ancestors | True)


def _drafts_by(drafter):
  """Wraps the builder of a case: another drafter."""
  return lambda build: (
    lambda: build()._replace(bound=build().bound._replace(drafter=drafter))
  )


def _raw_gate(distributions):
  return lambda *x, gate: distributions(*x, gate='raw')


def _one_rejection(_, d, pi, *candidates):
  return methods.normalize(jnp.maximum(0, pi - d.q), pi)


_TABLES = law.test_blocks_follow_the_declared_law, 'token', 1, 2, 'random', None
_HAND = (law.test_a_greedy_run_is_what_a_loop_without_caches_writes,)
_LOOP = law.check_loop, 'apart', _Config(), 3, 1, None, ('forbidden',)
_PROCESSED = law.check_loop, 'apart', _Config(gate='processed')
_PASS = (law.test_where_none_is_lenient_a_drafter_makes_a_pass_less,)
_TREE = strict.test_tables_are_the_verifier_whatever_is_drafted, 'model'
_ALONE = batch.test_answers_are_what_they_are_alone, 16
_TURN = batch.test_a_turn_goes_on_where_the_last_one_ended, 3
_GROWN = batch.test_caches_grow_with_their_rows, 8, 24
_LIMITS = methods_test.test_law_is_what_acceptance_and_residual_emit, 'diff'
_OF = {
  kind: (law.check_verify, kind, 1 if kind in cases.ONE_DRAFT else 2)
  for kind in cases.VERIFICATIONS
}
_VERIFIER = *_OF['token'], 2, 'verifier'
# What is patched, how, and the test that must see it with its arguments; first
# those whose test compiles no loop, and one whose test does.
_FAULTS = {
  # The residual is the law.
  'cases:METHODS': (_only('token_v3', residual=lambda m: m.law), _TABLES),
  # A strict lenience has the wrong sign.
  'methods:METHODS.diff': (_entry(strict=lambda m: 1.0), _LIMITS),
  # What a block leaves is the law.
  'methods:normalize': (lambda _: lambda x, law: law, _OF['block']),
  # The bonus is the target, whatever was asked for.
  'verification:VerificationInputs.bonus_from_target': (
    *(lambda _: True, _VERIFIER),
  ),
  # A rejected draft stays; one number tests all drafts.
  'verification.single_draft:count_leading': (
    *(lambda f: lambda x: jnp.minimum(f(x) + 1, len(x)), _OF['token']),
  ),
  'verification:VERIFICATIONS.block': (
    _entry(decide=lambda v: lambda x, a, s: v.decide(x, 0 * a, s)),
    _OF['block'],
  ),
  # A window is a draft too short.
  'verification:VERIFICATIONS.look_ahead': (
    _entry(decide=lambda v: lambda *x, window: v.decide(*x, window=window - 1)),
    _OF['look_ahead:2'],
  ),
  # All rejections leave what the first of them does.
  'verification.multi_draft:STEPS.multi_round': (
    *(_rest(residual=_one_rejection), _OF['multi_round']),
  ),
  'verification.multi_draft:STEPS.k_seq': (
    *(_rest(residual=_one_rejection), _OF['k_seq']),
  ),
  # A token that is no candidate is drawn again.
  'verification.multi_draft:STEPS.match': (
    *(_rest(residual=lambda _, d, pi, *x: pi), _OF['match']),
  ),
  # A node keeps its budget.
  'verification.traversal:_without_candidate': (
    lambda f: lambda budget, *x: (budget, f(budget, *x)[1]),
    _OF['traversal'],
  ),
  # The verifier reads a token less.
  'decoding.step:read_hidden': (_early_rows, _HAND),
  # A key depends on its place in the batch.
  'decoding:prefill': (_given(_keys_of_places), _ALONE),
  # Log-probabilities are of another row; a stop token ends nothing.
  'decoding.loop:record': (_given(_late_logprobs), _HAND),
  'decoding.step:find_emission': (_given(_never_stops), _HAND),
  # A rejected draft stays in the caches.
  'proof.table_models:TableModel.rewind': (
    *(lambda _: lambda self, cache, length: cache, _HAND),
  ),
  # Drafting and verifying share a key.
  'decoding.step:block_keys': (lambda f: lambda x: 2 * (f(x)[0],), _LOOP),
  # The loop looks through the raw gate.
  'decoding.step:distributions': (_raw_gate, _PROCESSED),
  # The draft is the favourite of a soft q.
  'cases:DRAFTERS.apart': (_drafts_by(_Greedy(cases.MODEL)), _LOOP),
  # Nobody looks beyond the last draft.
  'decoding:StepConfig.needs_bonus_probs': (
    *(lambda _: lambda self, state: jnp.zeros((), bool), _PASS),
  ),
  # A draft sees those beside it; the first is kept, whichever stays.
  'decoding.step:build_tree': (
    *(_rest(tree_mask=_open_mask), (*_TREE, 'match', 5)),
  ),
  'proof.table_models:TableModel.move': (
    *(lambda _: lambda self, cache, *x: cache, (*_TREE, 'multi_round', 5)),
  ),
  # A row takes the lenience of its neighbour.
  'decoding:refill_rows': (
    *(_given(lambda *x: (*x[:4], jnp.roll(x[4], 1), x[5])), _ALONE),
  ),
  # A drafter misses another turn; a row goes on where its cache has ended.
  'decoding.rows:_catch_up': (lambda _: lambda x, *_: x.drafter_state, _TURN),
  'decoding:StepConfig.cache_headroom': (lambda _: 0, _GROWN),
}


def _plant(patch, where, wrap):
  """Puts the faulty object in the place of what it wraps."""
  module, _, path = where.partition(':')
  if module != 'cases':
    module = f'cascades.{module}'
  owner, (*parents, name) = importlib.import_module(module), path.split('.')
  for parent in parents:
    owner = owner[parent] if isinstance(owner, dict) else getattr(owner, parent)
  if isinstance(owner, dict):
    patch.setitem(owner, name, wrap(owner[name]))
  else:
    patch.setattr(owner, name, wrap(getattr(owner, name)))


def _forget():
  """Forgets what functions of the library did."""
  jax.clear_caches()
  computed = cases.drafter, law._table, batch._alone
  for function in computed:
    function.cache_clear()


def _is_seen(test, args, patched) -> bool:
  """True if a test fails while something is patched."""
  _forget()
  try:
    with pytest.MonkeyPatch.context() as patch:
      _plant(patch, *patched)
      test(*args)
  # numpy says IndexError of a row that ends beyond its buffers.
  except (AssertionError, IndexError):
    return True
  finally:
    _forget()
  return False


@pytest.mark.parametrize('where', tiers.first(_FAULTS, 12))
def test_a_fault_is_seen(where):
  wrap, (test, *args) = _FAULTS[where]
  assert _is_seen(test, args, (where, wrap))
