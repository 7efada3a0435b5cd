"""Every registered method: its law, its limits, its parity."""

import functools
import itertools
import json
import pathlib
import pickle
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers

from cascades import methods
from cascades.proof import audit, law_checks

_CASES = json.loads(
  (pathlib.Path(__file__).parent / 'data/reference_rules.json').read_text()
)
_ALL = list(methods.METHODS)


_in_both = pytest.mark.parametrize(
  'x64', tiers.first([True, False]), ids=['64', '32']
)


def _values(method):
  """Acceptance, residual and law of rows and leniences."""

  def values(d, lenience):
    names = 'acceptance', 'residual', 'law'
    return {x: getattr(method, x)(d, lenience).astype(d.q.dtype) for x in names}

  return jax.jit(jax.vmap(jax.vmap(values, (0, None)), (None, 0)))


@functools.cache
def _evaluate(name: str, x64: bool):
  """Values at many leniences, by kind of distribution."""
  method, found = methods.METHODS[name], {}
  leniences = audit.trial_leniences(method)
  with law_checks.enable_x64(x64):
    dtype = jnp.float64 if x64 else jnp.float32
    for kind in law_checks.DISTRIBUTION_KINDS:
      d = law_checks.draw_distributions(kind)
      d = jax.tree.map(lambda x: jnp.asarray(x, dtype), d)
      values = _values(method)(d, jnp.asarray(leniences, dtype))
      found[kind] = jax.device_get(values | dict(q=d.q, p=d.p))
  return types.SimpleNamespace(leniences=leniences, values=found)


# What float32 makes of it is seen in the first tier at every lenience.
@_in_both
@pytest.mark.parametrize('name', _ALL)
def test_law_is_what_acceptance_and_residual_emit(name, x64):
  method = methods.METHODS[name]
  leniences = audit.trial_leniences(method)
  checks = law_checks.check_law(method, leniences, x64)
  assert len(checks) >= 4
  assert all(check.passed for check in checks), checks


@_in_both
@pytest.mark.parametrize('name', _ALL)
def test_limits_are_exactly_the_verifier_and_the_drafter(name, x64):
  method, evaluation = methods.METHODS[name], _evaluate(name, x64)
  # Laws that are sums, not choices, may be off in their last bits.
  close = 1e-15 if x64 else 3e-7
  for d in evaluation.values.values():
    if method.strict is not None:
      at = evaluation.leniences.index(method.strict)
      np.testing.assert_allclose(d['law'][at], d['p'], atol=close, rtol=0)
    if method.drafter_only is not None:
      at = evaluation.leniences.index(method.drafter_only)
      np.testing.assert_array_equal(d['law'][at], d['q'])
      np.testing.assert_array_equal(d['acceptance'][at][d['q'] > 0], 1)


@functools.cache
def _trials(size=64):
  """Positions with gates of any kind, those of q and p among them."""
  draw = functools.partial(law_checks.draw_distributions, size=size, count=32)
  # Spikes on a flat rest, which typical acceptance keeps.
  flat, one_hot = np.full((32, size), 1 / size), np.eye(32, size)
  spikes, trials = 0.8 * flat + 0.2 * one_hot, []
  for d in map(draw, law_checks.DISTRIBUTION_KINDS):
    gates = [(d.q_gate, d.p_gate), (d.q, d.p), (d.p, d.q), (d.q, d.q)]
    gates += [(one_hot, flat), (d.q, spikes), (flat, d.p)]
    # So near to p that a lenience times TV(p, q) is little; cold; a favourite.
    near = 0.999 * d.p + 0.001 * d.q
    cold = d.q**30 / (d.q**30).sum(-1, keepdims=True)
    drawn = d.q, near, cold, one_hot
    for q, (q_gate, p_gate) in itertools.product(drawn, gates):
      z = np.log(np.maximum(p_gate, 1e-30)) + 9
      trials.append(d._replace(q=q, q_gate=q_gate, p_gate=p_gate, p_logits=z))
  rows = jax.tree.map(lambda *x: np.concatenate(x), *trials)
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), rows)


@pytest.mark.parametrize('name', _ALL)
def test_a_lenience_is_strict_where_the_law_is_always_the_verifiers(name):
  method, d = methods.METHODS[name], _trials()
  # Finite leniences at which typical and top_k differ from p at 64 tokens.
  leniences = [-np.inf, -2, -1, -0.5, -1e-3, 0, 0.3, 1, 5, np.inf]
  law = jax.jit(jax.vmap(jax.vmap(method.law, (0, None)), (None, 0)))
  laws = np.asarray(law(d, jnp.asarray(leniences, jnp.float32)))
  errors = np.abs(laws - np.asarray(d.p)).max((1, 2))
  is_strict = [method.is_strict(x) for x in leniences]
  assert is_strict == [bool(error < 3e-7) for error in errors], errors
  # A number so near to 0 is lost beside the probabilities in float32.
  assert not method.is_strict(-1e-9) or method.is_strict(0.0)


@pytest.mark.parametrize('name', _ALL)
def test_every_lenience_gives_distributions(name):
  method = methods.METHODS[name]
  d = jax.tree.map(lambda x: x[::9], _trials())
  sizes = [0.0, 1e-30, 1e-3, 0.3, 1.0, 2.0, 50.0, 1e30, 3e38, np.inf]
  leniences = jnp.asarray([s * x for x in sizes for s in (1, -1)])
  values = jax.device_get(_values(method)(d, leniences))
  a, residual, law = (values[x] for x in ('acceptance', 'residual', 'law'))
  q = np.asarray(d.q)
  assert ((a >= 0) & (a <= 1)).all()
  for rows in (residual, law):
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)
  emitted = q * a + (q - q * a).sum(-1, keepdims=True) * residual
  np.testing.assert_allclose(emitted, law, atol=3e-6)
  # What neither model can draw is not in the law.
  neither = (q == 0) & (np.asarray(d.p) == 0)
  assert (law[:, neither] == 0).all()


def test_a_method_may_have_the_name_of_an_alias(monkeypatch):
  method = small.of_target(lambda d, _: d.p, name='cascade_opt')
  monkeypatch.setitem(methods.METHODS, method.name, method)
  assert methods.get_method('cascade_opt') is method


def test_what_the_target_excludes_is_never_kept():
  # Not even where the drafter could not have drawn it.
  one = jnp.array([0.0, 0.5, 0.5, 0.0])
  two = jnp.array([0.0, 0.0, 1.0, 0.0])
  assert methods.ratio(two, one).tolist() == [0, 0, 1, 0]
  assert methods.ratio(one, two).tolist() == [0, 1, 0.5, 0]


@pytest.mark.parametrize('name', _ALL)
def test_rejections_are_as_few_as_the_law_allows(name):
  # No verification of single tokens keeps more than sum min(pi, q); one that
  # is made from a target keeps just that; so does lenient decoding, as long
  # as it is not stricter than strict. For rules that is r * TV(p, q), Lemma 3,
  # or the sum over deferred v of max(0, q(v) - eta p(v)).
  method, evaluation = methods.METHODS[name], _evaluate(name, True)
  leniences = np.array(evaluation.leniences)
  for kind, values in evaluation.values.items():
    q, p = values['q'], values['p']
    kept = (q * values['acceptance']).sum(-1)
    most = np.minimum(values['law'], q).sum(-1)
    assert (kept <= most + 1e-12).all()
    if name not in ('verifier_only', 'typical', 'cactus'):
      some = leniences >= (0 if name == 'speed' else -np.inf)
      np.testing.assert_allclose(kept[some], most[some], atol=1e-12)
    if method.rule is None:
      continue
    with law_checks.enable_x64(True):
      d = jax.tree.map(jnp.asarray, law_checks.draw_distributions(kind))
      over = jax.vmap(jax.vmap(method.rule, (0, None)), (None, 0))
      r = np.asarray(over(d, jnp.asarray(leniences)))
    if name == 'typical':
      # A yes-or-no acceptance rejects whatever it defers.
      rejected = (r * q).sum(-1)
    elif r.ndim == 2:
      rejected = r * np.maximum(0, p - q).sum(-1)
    else:
      eta = (r * q).sum(-1, keepdims=True)
      rejected = (r * np.maximum(0, q - eta * p)).sum(-1)
    np.testing.assert_allclose(1 - kept, rejected, atol=1e-12)


def test_mentored_keeps_within_its_divergence_and_uses_it():
  evaluation = _evaluate('mentored', True)
  d = evaluation.values['random']

  def kl(x, y):
    terms = np.where(x > 0, x * np.log(np.where(x > 0, x / y, 1)), 0)
    return terms.sum(-1)

  for lenience, pi in zip(evaluation.leniences, d['law'], strict=True):
    spent, most = kl(pi, d['p']), kl(d['q'], d['p'])
    allowed = max(lenience, 0)
    assert (spent <= allowed + 1e-9).all()
    np.testing.assert_allclose(spent, np.minimum(allowed, most), atol=1e-6)


def test_cactus_averages_the_residuals_of_the_rejected():
  # Against the plain sum over every rejected x.
  evaluation = _evaluate('cactus', True)
  d = evaluation.values['random']
  p, q, at = d['p'], d['q'], np.arange(d['p'].shape[1])
  for i, lenience in enumerate(evaluation.leniences):
    h = np.minimum(1, p + np.sqrt(2 * max(lenience, 0) * p * (1 - p)))
    raised = ((1 - h) / (1 - p))[:, :, None] * p[:, None, :]
    raised[:, at, at] = h
    np.testing.assert_allclose(raised.sum(-1), 1, atol=1e-9)
    left = np.maximum(0, raised - q[:, None, :])
    mass = left.sum(-1, keepdims=True)
    left = left / np.where(mass > 0, mass, 1)
    w = q * (1 - d['acceptance'][i])
    total = w.sum(-1)
    want = (w[:, :, None] * left).sum(1) / np.maximum(total, 1e-300)[:, None]
    some = total > 1e-9
    np.testing.assert_allclose(d['residual'][i][some], want[some], atol=1e-9)


def _least(name, p, lam):
  """The least probability that a truncation of p keeps, [rows, 1]."""
  order, entropy = (
    -np.sort(-p, -1),
    -(p * np.log(np.maximum(p, 1e-300))).sum(-1),
  )
  if name == 'min_p':
    return np.clip(lam, 0, 1) * order[:, :1]
  if name == 'top_k':
    return order[:, [int(np.clip(lam, 1, p.shape[1])) - 1]]
  if name == 'top_p':
    # The first at which the mass is reached is in.
    n = (np.cumsum(order, -1) < 1 - lam - 1e-15).sum(-1, keepdims=True)
    return np.take_along_axis(order, np.minimum(n, p.shape[1] - 1), -1)
  lam = max(lam, 0)
  least = np.minimum(lam, np.sqrt(lam) * np.exp(-entropy))
  return np.minimum(least, order[:, 0])[:, None]


@pytest.mark.parametrize('name', ['min_p', 'top_p', 'top_k', 'eta'])
def test_truncation_baselines_sample_from_a_truncated_verifier(name):
  evaluation = _evaluate(name, True)
  values = evaluation.values['random']
  p = values['p']
  for got, lenience in zip(values['law'], evaluation.leniences, strict=True):
    want = np.where(p >= _least(name, p, lenience), p, 0)
    want = want / want.sum(-1, keepdims=True)
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_contrastive_is_its_formula_in_logits():
  rng = np.random.default_rng(0)
  zp, zq = 2 * rng.standard_normal((2, 32, 9))
  for temperature, b in ((1.0, 0.5), (0.7, 1.0), (1.5, 0.0)):
    with law_checks.enable_x64(True):
      q, p = (jax.nn.softmax(jnp.asarray(z) / temperature) for z in (zq, zp))
      d = methods.Distributions(q, p, q, p)
      law = jax.vmap(methods.METHODS['contrastive'].law, (0, None))(d, b)
    scores = ((1 + b) * zp - b * zq) / temperature
    border = zp.max(-1, keepdims=True) + temperature * np.log(0.1)
    scores = np.where(zp >= border, scores, -np.inf)
    want = np.exp(scores - scores.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    np.testing.assert_allclose(law, want, atol=1e-12)


def _reference_inputs(case):
  """Distributions in the dtype of the logits, [V, 1, V] each."""
  both = [jnp.array(case[f'logits_{size}']) for size in ('small', 'large')]

  def probs(logits):
    if not case['temperature']:
      return jax.nn.one_hot(jnp.argmax(logits), len(logits), dtype=logits.dtype)
    return jax.nn.softmax(logits / case['temperature'])

  rows = *map(probs, both), *map(jax.nn.softmax, both)
  return [jnp.tile(x[None, None], (len(both[0]), 1, 1)) for x in rows]


@_in_both
def test_parity_with_the_notebook(x64):
  tolerance, compared = 1e-9 if x64 else 1e-5, 0
  with law_checks.enable_x64(x64):
    for case in _CASES:
      inputs = _reference_inputs(case)
      size = len(inputs[0])
      fns = methods.get_acceptance_residual_fns(
        case['method'], case['lenience']
      )
      a, r = (np.asarray(f(*inputs, jnp.arange(size)[:, None])) for f in fns)
      assert (a.shape, r.shape) == ((size, 1), (size, 1, size))
      want = np.array(case['acceptance'])
      # Under 1e-10 the notebook floors q in its quotient, and rejects what
      # the law keeps; the mass of such tokens is nothing.
      drawn = np.asarray(inputs[0][0, 0]) > 1e-10
      np.testing.assert_allclose(
        a[drawn, 0], want[drawn], atol=tolerance, rtol=tolerance
      )
      mass = np.array(case['residual_unnormalized'])
      if mass.sum() > 1e-6:
        np.testing.assert_allclose(r[0, 0], mass / mass.sum(), atol=tolerance)
        compared += 1
  assert compared > 100


def test_a_method_is_found_by_its_names_and_pickled_as_one():
  method = methods.METHODS['token_v3']
  assert methods.get_method('cascade_tokenV3') is method
  # By its name, so that another process compiles it once.
  assert pickle.loads(pickle.dumps(method)) is method


def test_odd_rows_have_margins():
  # Equal logits, none above 0, a lenience beyond strict.
  margin = methods.METHODS['margin'].rule
  for z, lenience, want in (
    ([10.0, 10.0, 9.4, 1.0], 0.0, [0, 0, 1, 1]),
    ([-1.0, -2.0, -3.0, -4.0], 0.5, [1, 1, 1, 1]),
    ([10.0, 9.5, 9.4, 1.0], -1.0, [1, 1, 1, 1]),
  ):
    z = jnp.array(z)
    d = methods.Distributions(*4 * (jax.nn.softmax(z),), z)
    assert margin(d, lenience).astype(int).tolist() == want


@pytest.mark.slow
@pytest.mark.parametrize('name', _ALL)
def test_temporaries_stay_small_at_gemmas_vocabulary(name):
  # 16 sequences, 5 positions, 262,144 tokens: 84 MB an array. Only compiled.
  method = methods.METHODS[name]

  def one(d, lenience):
    return method.acceptance(d, lenience), method.residual(d, lenience)

  rows = jax.ShapeDtypeStruct((16, 5, 262_144), jnp.float32)
  over = jax.vmap(jax.vmap(one, (0, None)), (0, None))
  lenience = jax.ShapeDtypeStruct((), jnp.float32)
  exe = jax.jit(over).lower(methods.Distributions(*5 * (rows,)), lenience)
  assert exe.compile().memory_analysis().temp_size_in_bytes < 1.2e9
