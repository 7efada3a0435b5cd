"""Every registered method: its law, its limits, its parity."""

import functools
import itertools
import json
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from cascades import methods
from cascades.methods import processing
from cascades.proof import audit, law_checks, table_models

_CASES = json.loads(
  (pathlib.Path(__file__).parent / 'data/reference_rules.json').read_text()
)
_ALL = list(methods.METHODS)
_RULES = [n for n in _ALL if methods.METHODS[n].rule is not None]


_in_both = pytest.mark.parametrize(
  'x64', tiers.first([True, False]), ids=['64', '32']
)


def _values(method):
  """A function of rows and leniences: acceptance, residual, law and rule.

  Each is [leniences, rows, V].
  """
  rule = method.rule or (lambda d, lenience: jnp.zeros(()))

  def values(d, lenience):
    functions = method.acceptance, method.residual, method.law, rule
    return [f(d, lenience).astype(d.q.dtype) for f in functions]

  return jax.jit(jax.vmap(jax.vmap(values, (0, None)), (None, 0)))


@functools.cache
def _evaluate(name: str, x64: bool):
  """Method, leniences, and by kind (d, acceptance, residual, law, rule)."""
  method = methods.METHODS[name]
  leniences = audit.trial_leniences(method)
  run = _values(method)
  with law_checks.enable_x64(x64):
    dtype, found = jnp.float64 if x64 else jnp.float32, {}
    for kind in law_checks.DISTRIBUTION_KINDS:
      d = law_checks.draw_distributions(kind)
      d = jax.tree.map(lambda x: jnp.asarray(x, dtype), d)
      values = run(d, jnp.asarray(leniences, dtype))
      found[kind] = jax.device_get((d, *values))
  return method, leniences, found


# What float32 makes of it is seen in the first tier at every lenience.
@_in_both
@pytest.mark.parametrize('name', _ALL)
def test_law_is_what_acceptance_and_residual_emit(name, x64):
  _, leniences, found = _evaluate(name, x64)
  assert len(leniences) >= 50
  close = 1e-12 if x64 else 2e-6
  for kind, (d, a, residual, law, _) in found.items():
    kept = d.q * a
    emitted = kept + (1 - kept.sum(-1, keepdims=True)) * residual
    assert ((a >= 0) & (a <= 1)).all(), kind
    assert (law >= 0).all(), kind
    assert (residual >= 0).all(), kind
    np.testing.assert_allclose(law.sum(-1), 1, atol=close)
    # A residual of little mass is a difference of larger numbers.
    off = min(1e-6, 5 * close) if kind == 'equal' else 5 * close
    np.testing.assert_allclose(residual.sum(-1), 1, atol=off)
    np.testing.assert_allclose(emitted, law, atol=1e-9 if x64 else close)


@_in_both
@pytest.mark.parametrize('name', _ALL)
def test_limits_are_exactly_the_verifier_and_the_drafter(name, x64):
  method, leniences, found = _evaluate(name, x64)
  if method.strict is None and method.drafter_only is None:
    assert name == 'contrastive'  # Truncates p at every lenience.
  # Laws that are sums, not choices, may be off in their last bits.
  close = 1e-15 if x64 else 3e-7
  for d, a, _, law, _ in found.values():
    if method.strict is not None:
      at = leniences.index(method.strict)
      np.testing.assert_allclose(law[at], d.p, atol=close, rtol=0)
    if method.drafter_only is not None:
      at = leniences.index(method.drafter_only)
      np.testing.assert_array_equal(law[at], d.q)
      np.testing.assert_array_equal(a[at][d.q > 0], 1)


@functools.cache
def _trials(size=64):
  """Positions with gates of any kind, those of q and p among them."""
  draw = functools.partial(law_checks.draw_distributions, size=size, count=32)
  # Spikes on a flat rest, which typical acceptance keeps.
  flat = np.full((32, size), 1 / size)
  spikes, trials = 0.8 * flat + 0.2 * np.eye(32, size), []
  for d in map(draw, law_checks.DISTRIBUTION_KINDS):
    gates = [(d.q_gate, d.p_gate), (d.q, d.p), (d.p, d.q), (d.q, d.q)]
    gates += [(np.eye(32, size), flat), (d.q, spikes), (flat, d.p)]
    # So near to p that a lenience times TV(p, q) is little.
    near = 0.999 * d.p + 0.001 * d.q
    for q, (q_gate, p_gate) in itertools.product((d.q, near), gates):
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
  expected = [bool(error < 3e-7) for error in errors]
  is_strict = [method.is_strict(x) for x in leniences]
  # A rule of others may be strict at more leniences than it declares.
  if not methods.is_builtin(method):
    is_strict = [x or y for x, y in zip(is_strict, expected, strict=True)]
  assert is_strict == expected, errors
  # A number so near to 0 is lost beside the probabilities in float32.
  assert not method.is_strict(-1e-9) or method.is_strict(0.0)


def _odd_rows():
  """Yields distributions of the loop: processed alike, apart, one-hot."""
  logits = 3 * np.random.default_rng(0).standard_normal((2, 32, 9))
  chosen = np.arange(9) == logits[0].argmax(-1)[:, None]
  chosen = np.where(chosen, 0, -np.inf)
  forbidden = np.isin(np.arange(9), [1, 4])
  plain, greedy, cold = {}, dict(temperature=0.0), dict(temperature=0.02)
  k, share, without = dict(top_k=2), dict(top_p=0.5), dict(forbidden=forbidden)
  alike = [(*logits, x, x) for x in (k, share, cold, without, greedy)]
  for small, large, q, p in (
    *alike,
    *((*logits, *x) for x in ((plain, k), (greedy, plain), (plain, greedy))),
    (*logits, dict(temperature=1e-9), plain),
    (*(40 * logits), plain, plain),
    *((chosen, logits[1], x, x) for x in (plain, greedy, without)),
    (chosen, chosen, without, without),
  ):
    yield table_models.table_distributions(
      jnp.asarray(large, jnp.float32),
      jnp.asarray(small, jnp.float32),
      processing.SamplingParams(**q),
      verifier_sampling=processing.SamplingParams(**p),
    )
  for kind in law_checks.DISTRIBUTION_KINDS:
    d = law_checks.draw_distributions(kind, 32)
    yield jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), d)


@functools.cache
def _all_odd_rows():
  return jax.tree.map(lambda *x: jnp.concatenate(x), *_odd_rows())


@pytest.mark.parametrize('name', _ALL)
def test_every_lenience_gives_distributions(name):
  method, d = methods.METHODS[name], _all_odd_rows()
  sizes = [0.0, 1e-30, 1e-3, 0.3, 1.0, 2.0, 50.0, 1e30, 3e38, np.inf]
  leniences = jnp.asarray([s * x for x in sizes for s in (1, -1)])
  a, residual, law, _ = jax.device_get(_values(method)(d, leniences))
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


def test_a_residual_without_mass_is_the_law():
  p = jnp.array([0.1, 0.2, 0.7])
  np.testing.assert_array_equal(methods.normalize(0 * p, p), p)
  for name in ('speed', 'chow', 'diff', 'opt', 'lossy'):
    one = methods.METHODS[name]
    said = one.residual(methods.Distributions(p, p, p, p), jnp.asarray(0.0))
    np.testing.assert_allclose(said, p, atol=1e-6)


def test_what_the_target_excludes_is_never_kept():
  # Not even where the drafter could not have drawn it.
  one = jnp.array([0.0, 0.5, 0.5, 0.0])
  two = jnp.array([0.0, 0.0, 1.0, 0.0])
  assert methods.ratio(two, one).tolist() == [0, 0, 1, 0]
  assert methods.ratio(one, two).tolist() == [0, 1, 0.5, 0]


@pytest.mark.parametrize('name', _RULES)
def test_rejection_rate_has_its_closed_form(name):
  # Whole-distribution rules: r * TV(p, q), Lemma 3; token rules: the sum over
  # deferred v of max(0, q(v) - eta p(v)). A yes-or-no acceptance rejects
  # whatever it defers.
  _, _, found = _evaluate(name, True)
  for d, a, _, _, r in found.values():
    rejected = (d.q * (1 - a)).sum(-1)
    if name == 'typical':
      want = (r * d.q).sum(-1)
    elif r.ndim == 2:
      want = r * np.maximum(0, d.p - d.q).sum(-1)
    else:
      eta = (r * d.q).sum(-1, keepdims=True)
      want = (r * np.maximum(0, d.q - eta * d.p)).sum(-1)
    np.testing.assert_allclose(rejected, want, atol=1e-12)


@pytest.mark.parametrize('name', _ALL)
def test_expected_acceptance_is_what_the_law_allows(name):
  # No verification of single tokens keeps more than sum min(pi, q); one that
  # is made from a target keeps just that; so does lenient decoding, as long
  # as it is not stricter than strict.
  _, leniences, found = _evaluate(name, True)
  for d, a, _, law, _ in found.values():
    kept, most = (d.q * a).sum(-1), np.minimum(law, d.q).sum(-1)
    assert (kept <= most + 1e-12).all()
    if name == 'speed':
      lenient = np.array(leniences) >= 0
      kept, most = kept[lenient], most[lenient]
    if name not in ('verifier_only', 'typical', 'cactus'):
      np.testing.assert_allclose(kept, most, atol=1e-12)


def test_mentored_keeps_within_its_divergence_and_uses_it():
  _, leniences, found = _evaluate('mentored', True)
  d, _, _, law, _ = found['random']

  def kl(x, y):
    terms = np.where(x > 0, x * np.log(np.where(x > 0, x / y, 1)), 0)
    return terms.sum(-1)

  for lenience, pi in zip(leniences, law, strict=True):
    spent, most = kl(pi, d.p), kl(d.q, d.p)
    allowed = max(lenience, 0)
    assert (spent <= allowed + 1e-9).all()
    np.testing.assert_allclose(spent, np.minimum(allowed, most), atol=1e-6)


def test_a_program_from_the_compile_cache_computes_the_same():
  # JAX 0.6.0, and 0.5.3, leave a loop too early that they load on a CPU.
  laws = []
  for _ in range(2):
    jax.clear_caches()
    laws.append(_evaluate.__wrapped__('mentored', True)[2]['random'][3])
  np.testing.assert_array_equal(*laws)


def test_cactus_averages_the_residuals_of_the_rejected():
  # Against the plain sum over every rejected x.
  _, leniences, found = _evaluate('cactus', True)
  d, a, residual, _, _ = found['random']
  p, at = d.p, np.arange(d.p.shape[1])
  for i, lenience in enumerate(leniences):
    h = np.minimum(1, p + np.sqrt(2 * max(lenience, 0) * p * (1 - p)))
    raised = ((1 - h) / (1 - p))[:, :, None] * p[:, None, :]
    raised[:, at, at] = h
    np.testing.assert_allclose(raised.sum(-1), 1, atol=1e-9)
    left = np.maximum(0, raised - d.q[:, None, :])
    mass = left.sum(-1, keepdims=True)
    left = left / np.where(mass > 0, mass, 1)
    w = d.q * (1 - a[i])
    total = w.sum(-1)
    want = (w[:, :, None] * left).sum(1) / np.maximum(total, 1e-300)[:, None]
    some = total > 1e-9
    np.testing.assert_allclose(residual[i][some], want[some], atol=1e-9)


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
  _, leniences, found = _evaluate(name, True)
  d, _, _, law, _ = found['random']
  for got, lenience in zip(law, leniences, strict=True):
    want = np.where(d.p >= _least(name, d.p, lenience), d.p, 0)
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


def test_registering_makes_a_method_known():
  method = methods.from_target(
    lambda d, lenience: lenience * d.q + (1 - lenience) * d.p,
    name='test_blend',
    equation='lam q + (1 - lam) p',
    reference='this test',
    strict=0.0,
    drafter_only=1.0,
  )
  try:
    assert methods.register(method) is methods.get_method('test_blend')
    # By its name, so that another process compiles it once.
    assert pickle.loads(pickle.dumps(method)) is method
  finally:
    del methods.METHODS['test_blend']
  assert methods.get_method('cascade_tokenV3') is methods.METHODS['token_v3']


def test_odd_rows_have_margins_and_entropies():
  # Equal logits, none above 0, a lenience beyond strict; and no third token.
  margin, undecided = (methods.METHODS[x].rule for x in ('margin', 'undecided'))
  for z, lenience, want in (
    ([10.0, 10.0, 9.4, 1.0], 0.0, [0, 0, 1, 1]),
    ([-1.0, -2.0, -3.0, -4.0], 0.5, [1, 1, 1, 1]),
    ([10.0, 9.5, 9.4, 1.0], -1.0, [1, 1, 1, 1]),
  ):
    z = jnp.array(z)
    d = methods.Distributions(*4 * (jax.nn.softmax(z),), z)
    assert margin(d, lenience).astype(int).tolist() == want
  # Entropies of the top three by log 3: .63, 0.
  for first, kept, deferred in (0.5, 0.4, 0.3), (1.0, 1.0, 0.99):
    d = methods.Distributions(*4 * (jnp.array([first, 1 - first, 0.0, 0.0]),))
    assert not undecided(d, kept)
    assert undecided(d, deferred)


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
