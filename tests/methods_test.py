"""Every registered method: its law, its limits, its parity."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import methods, sampling

_CASES = json.loads(
  (pathlib.Path(__file__).parent / 'data/reference_rules.json').read_text()
)
_ALL = list(methods.METHODS)
_RULES = [n for n in _ALL if methods.METHODS[n].rule is not None]


def _random_rows(kind: str, rows: int = 64, size: int = 9):
  """Distributions [rows, size] in float64."""
  rng = np.random.default_rng(0)
  q = rng.dirichlet(np.full(size, 0.5), rows)
  p = rng.dirichlet(np.full(size, 0.5), rows)
  if kind == 'equal':
    p = q
  elif kind == 'disjoint':
    q[:, ::2], p[:, 1::2] = 0, 0
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
  elif kind == 'one_hot':
    q = np.eye(size)[rng.integers(size, size=rows)]
    p = np.eye(size)[rng.integers(size, size=rows)]
  elif kind == 'near_equal':
    p = q * (1 + 1e-7 * rng.standard_normal(q.shape))
    p = p / p.sum(1, keepdims=True)
  gates = rng.dirichlet(np.ones(size), (2, rows))
  return methods.Distributions(*map(jnp.asarray, (q, p, *gates)))


def _over_rows(fn, d, lenience):
  return np.asarray(jax.vmap(fn, (0, None))(d, jnp.asarray(lenience)))


def _leniences(method):
  ends = [x for x in (method.strict, method.drafter_only) if x is not None]
  return [*ends, -0.5, 0.0, 0.2, 0.7, 0.95]


@pytest.mark.parametrize(
  'kind', ['random', 'equal', 'disjoint', 'one_hot', 'near_equal']
)
@pytest.mark.parametrize('name', _ALL)
def test_law_is_what_acceptance_and_residual_emit(name, kind):
  method = methods.METHODS[name]
  with jax.enable_x64(True):
    d = _random_rows(kind)
    for lenience in _leniences(method):
      a = _over_rows(method.acceptance, d, lenience)
      residual = _over_rows(method.residual, d, lenience)
      law = _over_rows(method.law, d, lenience)
      kept = np.asarray(d.q) * a
      emitted = kept + (1 - kept.sum(-1, keepdims=True)) * residual
      assert ((a >= 0) & (a <= 1)).all()
      assert (law >= 0).all()
      np.testing.assert_allclose(law.sum(-1), 1, atol=1e-12)
      np.testing.assert_allclose(residual.sum(-1), 1, atol=1e-12)
      np.testing.assert_allclose(emitted, law, atol=1e-9)


@pytest.mark.parametrize('name', _ALL)
def test_limits_are_exactly_the_verifier_and_the_drafter(name):
  method = methods.METHODS[name]
  assert method.strict is not None or method.drafter_only is not None
  d = jax.tree.map(lambda x: x.astype(jnp.float32), _random_rows('random'))
  if method.strict is not None:
    law = _over_rows(method.law, d, method.strict)
    np.testing.assert_allclose(law, d.p, atol=3e-7)
  if method.drafter_only is not None:
    law = _over_rows(method.law, d, method.drafter_only)
    np.testing.assert_array_equal(law, d.q)
    accepted = _over_rows(method.acceptance, d, method.drafter_only)
    np.testing.assert_array_equal(accepted, 1)


def test_zero_is_not_off_for_token_v3():
  # The commonest wrong default: at 0 the law is not the verifier's.
  rng = np.random.default_rng(0)
  large = 2 * rng.standard_normal((64, 50))
  small = large + rng.standard_normal((64, 50))
  q, p = (jax.nn.softmax(jnp.asarray(x), -1) for x in (small, large))
  d = methods.Distributions(q, p, q, p)
  law = _over_rows(methods.METHODS['token_v3'].law, d, 0.0)
  assert np.abs(law - d.p).sum(-1).mean() / 2 > 0.1


@pytest.mark.parametrize('name', _RULES)
def test_rejection_rate_has_its_closed_form(name):
  # Whole-distribution rules: r * TV(p, q), Lemma 3; token rules: the sum over
  # deferred v of max(0, q(v) - eta p(v)).
  method = methods.METHODS[name]
  with jax.enable_x64(True):
    d = _random_rows('random')
    q, p = np.asarray(d.q), np.asarray(d.p)
    for lenience in _leniences(method):
      r = _over_rows(method.rule, d, lenience).astype(float)
      a = _over_rows(method.acceptance, d, lenience)
      rejected = (q * (1 - a)).sum(-1)
      if r.ndim == 1:
        want = r * np.maximum(0, p - q).sum(-1)
      else:
        eta = (r * q).sum(-1, keepdims=True)
        want = (r * np.maximum(0, q - eta * p)).sum(-1)
      np.testing.assert_allclose(rejected, want, atol=1e-12)


def _reference_inputs(case):
  how = sampling.Processing(temperature=case['temperature'])
  small = jnp.array(case['logits_small'])
  large = jnp.array(case['logits_large'])

  # In the dtype of the logits: the library's own functions are float32.
  def probs(logits):
    if not case['temperature']:
      return jax.nn.one_hot(jnp.argmax(logits), len(logits), dtype=logits.dtype)
    return jax.nn.softmax(logits / how.temperature)

  return (
    probs(small),
    probs(large),
    jax.nn.softmax(small),
    jax.nn.softmax(large),
  )


@pytest.mark.parametrize(
  ('x64', 'tolerance'), [(True, 1e-9), (False, 1e-5)], ids=['64', '32']
)
def test_parity_with_the_notebook(x64, tolerance):
  compared = 0
  with jax.enable_x64(x64):
    for case in _CASES:
      inputs = _reference_inputs(case)
      size = inputs[0].shape[0]
      batched = [jnp.tile(x[None, None], (size, 1, 1)) for x in inputs]
      tokens = jnp.arange(size)[:, None]
      acceptance, residual = methods.get_acceptance_residual_fns(
        case['method'], case['lenience']
      )
      a = np.asarray(acceptance(*batched, tokens))
      r = np.asarray(residual(*batched, tokens))
      assert a.shape == (size, 1)
      assert r.shape == (size, 1, size)
      want = np.array(case['acceptance'])
      # Under 1e-10 the notebook floors q in its quotient, and rejects what
      # the law keeps; the mass of such tokens is nothing.
      drawn = np.asarray(inputs[0]) > 1e-10
      np.testing.assert_allclose(
        a[drawn, 0], want[drawn], atol=tolerance, rtol=tolerance
      )
      mass = np.array(case['residual_unnormalized'])
      if mass.sum() > 1e-6:
        np.testing.assert_allclose(
          r[0, 0], mass / mass.sum(), atol=max(tolerance, 1e-5 * (not x64))
        )
        compared += 1
  assert compared > 100


def test_equal_distributions_leave_a_residual_that_can_be_sampled():
  d = _random_rows('equal')
  for method in methods.METHODS.values():
    residual = _over_rows(method.residual, d, 0.3)
    assert np.isfinite(residual).all()
    np.testing.assert_allclose(residual.sum(-1), 1, atol=1e-6)


def test_names():
  assert list(methods.METHODS) == [
    'drafter_only',
    'verifier_only',
    'speed',
    'chow',
    'diff',
    'opt',
    'token_v1',
    'token_v2',
    'token_v3',
  ]
  assert methods.get_method('cascade_tokenV3') is methods.METHODS['token_v3']
  with pytest.raises(ValueError, match="did you mean 'token_v3'"):
    methods.get_method('token_v33')
  with pytest.raises(ValueError, match='taken'):
    methods.register(
      methods.from_rule(
        methods.chow, name='diff', equation='', strict=-1, drafter_only=1
      )
    )


def test_registering_makes_a_method_known():
  def blend(d, lenience):
    share = jnp.clip(lenience, 0, 1)
    return share * d.q + (1 - share) * d.p

  method = methods.from_target(
    blend,
    name='test_blend',
    equation='lam q + (1 - lam) p',
    reference='this test',
    strict=0.0,
    drafter_only=1.0,
  )
  try:
    assert methods.register(method) is methods.get_method('test_blend')
    test_law_is_what_acceptance_and_residual_emit('test_blend', 'random')
  finally:
    del methods.METHODS['test_blend']
