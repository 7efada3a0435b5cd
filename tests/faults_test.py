"""Logits that are no distribution end a call, in a sentence."""

import pickle
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import methods, verification
from cascades.decoding import faults
from cascades.sampler import scoring
from experiments.sweeps import curve_plan, worker

pytestmark = pytest.mark.usefixtures('few_shapes')

_PROMPT = 'The number 4302 in words:'
_VALUES = {'nan': jnp.nan, 'inf': jnp.inf, 'no token': -jnp.inf}


def _broken(checkpoint, value, row=...):
  """The same table with rows that are no distribution."""
  return checkpoint._replace(params=checkpoint.params.at[row].set(value))


def _pair(culprit, value):
  """A pair of tables, one of which is broken."""
  verifier, drafter = small.tables()
  if culprit == 'verifier':
    return _broken(verifier, value), drafter
  # One entry makes the whole row no distribution, unless it is impossible.
  return verifier, _broken(drafter, value, ... if value < 0 else (..., 9))


def _fails(culprit, pair, forbidden=(), **options):
  """That a sampler's answer ends in an error which names the culprit."""
  sampler = small.sampler(*pair, **dict(cache_length=256) | options)
  length = len(sampler.encode(_PROMPT))
  wanted = f'its logits are not finite at position {length}'
  if culprit == 'method':
    wanted = 'its target is not a distribution at position'
  with pytest.raises(ValueError, match=f'^{culprit}: {wanted} .*of prompt 0;'):
    sampler.sample(_PROMPT, max_new_tokens=8, forbidden_tokens=[*forbidden])


_VERIFIED = [
  (kind, 1 + (kind in verification.MULTI_DRAFT))
  for kind in verification.VERIFICATIONS
]


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('value', _VALUES.values(), ids=_VALUES)
@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
@pytest.mark.parametrize(('kind', 'drafts'), tiers.first(_VERIFIED))
def test_a_call_ends_with_the_model_and_the_position(
  kind, drafts, culprit, value, temperature
):
  options = dict(verification=kind, drafts=drafts, temperature=temperature)
  # Tokens that are forbidden hide no fault.
  _fails(culprit, _pair(culprit, value), [9, 11], lenience=0.3, **options)


@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
def test_what_no_emitted_token_is_drawn_from_is_no_fault(culprit):
  # Strict decoding is the verifier alone, which reads nothing more either.
  options = dict(temperature=0.0, cache_length=256)
  verifier, _ = small.tables()
  prompt = small.sampler(verifier, gamma=0, **options).encode(_PROMPT)
  context = int(
    verifier.model.context(np.array(prompt), np.arange(len(prompt)))
  )
  # The first token ends the answer; whatever is read after it is broken.
  ends = jnp.arange(verifier.params.shape[1]) == 1
  of_first = jnp.where(ends, 9.0, -9.0)

  def table(is_broken):
    rest = jnp.full_like(verifier.params, jnp.nan if is_broken else 0.0)
    return verifier._replace(params=rest.at[context].set(of_first))

  pair = table(culprit == 'verifier'), table(culprit == 'drafter')
  for sampler in (
    small.sampler(*pair, lenience=-1.0, **options),
    small.sampler(pair[0], gamma=0, **options),
  ):
    assert sampler.sample(_PROMPT, max_new_tokens=8).tokens == [1]
  if culprit == 'verifier':
    # One that does not end there is told where it broke.
    late = pair[0].params.at[context].set(jnp.roll(of_first, 8))
    sampler = small.sampler(pair[0]._replace(params=late), gamma=0, **options)
    at = f'at position {len(prompt) + 1} of prompt 0'
    with pytest.raises(ValueError, match=f'^verifier: its .* {at}'):
      sampler.sample(_PROMPT, max_new_tokens=8)


@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
def test_whatever_is_asked_for_ends(culprit):
  pair = _pair(culprit, jnp.nan)
  sampler, new = small.sampler(*pair, lenience=0.3), dict(max_new_tokens=8)
  for call, said in (
    (lambda: list(sampler.stream(_PROMPT, **new)), 'its logits'),
    (lambda: sampler.sample_curve(['x'], [0.3], **new), 'its logits'),
    (lambda: scoring.score(sampler, [([2, 7], [8, 9])]), '.* at position 2 of'),
  ):
    with pytest.raises(ValueError, match=f'^{culprit}: {said}') as error:
      call()
    # Another process can raise it, too.
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)


@pytest.mark.slow
def test_a_soft_cap_hides_no_infinity():
  # A Gemma 2, whose logits have a soft cap, with a broken last norm.
  verifier = cascades.load_model(small.pair()[0])
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      x.at[0].set(jnp.inf) if 'final_norm' in jax.tree_util.keystr(path) else x
    ),
    verifier.params,
  )
  broken = verifier._replace(params=params)
  sampler = small.sampler(broken, gamma=0, cache_length=256)
  for call in (
    lambda: sampler.sample(_PROMPT, max_new_tokens=4),
    lambda: scoring.score(sampler, [([2, 7], [8, 9])]),
  ):
    with pytest.raises(ValueError, match=r'^verifier: its logits'):
      call()


@pytest.mark.slow
# `look_ahead` draws from p alone, and is strict if no draft is accepted.
@pytest.mark.parametrize(
  ('kind', 'drafts'), [x for x in _VERIFIED if x[0] != 'look_ahead']
)
def test_a_rule_that_says_nan_is_the_methods_fault(kind, drafts):
  rule = methods.from_rule(
    lambda d, lenience: jnp.full(d.q.shape, jnp.nan),
    **dict(name='nan_rule', equation='', strict=None, drafter_only=None),
    has_lenience=False,
  )
  options = dict(method=rule, verification=kind, drafts=drafts)
  _fails('method', small.tables(), **options)


def _is_valid(method, kind, d, lenience=0.0, **changes):
  """True if a block of one draft is verified by a distribution."""
  whole = dict(draft_lengths=jnp.ones(1, int), has_bonus_probs=jnp.bool_([1]))
  inputs = verification.VerificationInputs(
    **dict(method=method, lenience=jnp.float32(lenience)),
    **dict(tokens=jnp.int32([[1]]), distributions_at=d),
    config=verification.VerificationConfig(kind),
    **whole | changes,
  )
  return verification.verify(inputs, jax.random.key(0)).is_valid


@pytest.mark.parametrize('kind', ['token', 'block', 'k_seq', 'traversal'])
@pytest.mark.parametrize('kept', [False, True])
def test_a_law_with_a_negative_probability_is_the_methods_fault(kind, kept):
  # It sums to 1, and the residual is made of what is above 0.
  pi = jnp.float32([-0.5, 1.0, 0.5] if kept else [-0.5, 0.0, 1.5])
  q = p = jnp.float32([0.25, 0.5, 0.25])
  d = methods.Distributions(q, p, q, p, jnp.log(p))
  for law, is_valid in (pi, False), (p, True):
    method = small.of_target(lambda d, lenience, law=law: law)
    assert _is_valid(method, kind, lambda i, j: d) == is_valid


def test_a_law_after_a_draft_that_ended_early_is_no_fault():
  p = jnp.float32([0.25, 0.5, 0.25])

  def at(depth, draft):
    q = jnp.where(depth, jnp.nan, p)
    return methods.Distributions(q, p, q, p, jnp.log(p))

  unknown = dict(has_bonus_probs=jnp.zeros(1, bool))
  ensemble = methods.METHODS['ensemble']
  assert _is_valid(ensemble, 'traversal', at, 0.5, **unknown)


def test_a_sweep_names_the_drafter_that_decodes_alone():
  ended = mock.Mock()
  ended._sampler.return_value = mock.Mock(), 0
  ended._sampler.return_value[0].refusal.return_value = None
  ended._request.return_value = {}
  ended._decode_timed.side_effect = faults.FaultError(
    'verifier', 'at position 9 of prompt 3'
  )
  curve = curve_plan.Curve.from_config({}, 'drafter_only', ())
  with pytest.raises(ValueError, match=r'^drafter: its logits .* of prompt 3;'):
    worker.Worker.decode_curve(ended, mock.Mock(), curve, [mock.Mock()])
