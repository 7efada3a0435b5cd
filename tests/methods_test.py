"""Every registered method: its law, its limits, its parity, its theorems.

Leviathan et al. 2023 (arXiv 2211.17192) for the tokens of a block;
Narasimhan et al. 2025 (arXiv 2405.19261) for the rest.
"""

import functools
import itertools
import pickle
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from cascades import methods, verification
from cascades.methods import processing
from cascades.proof import audit, enumeration, law_checks, table_models

_CASES = small.read_json(small.ROOT / 'tests/data/reference_rules.json')
_ALL = list(methods.METHODS)
# They reject drafts that another acceptance of the same law would keep.
_NOT_LEAST = 'verifier_only typical cactus relaxed_top accept_threshold'.split()


def _values(method):
  """Acceptance, residual and law of rows and leniences."""

  def values(d, lenience):
    names = 'acceptance', 'residual', 'law'
    return {x: getattr(method, x)(d, lenience).astype(d.q.dtype) for x in names}

  return jax.jit(jax.vmap(jax.vmap(values, (0, None)), (None, 0)))


@functools.cache
def _evaluate(name: str):
  """Values in float64 at many leniences, by kind of distribution."""
  method, found = methods.METHODS[name], {}
  leniences = audit.trial_leniences(method)
  with law_checks.enable_x64(True):
    for kind in law_checks.DISTRIBUTION_KINDS:
      d = jax.tree.map(jnp.asarray, law_checks.draw_distributions(kind))
      values = _values(method)(d, jnp.asarray(leniences))
      found[kind] = jax.device_get(values | dict(q=d.q, p=d.p))
  return types.SimpleNamespace(leniences=leniences, values=found)


def _registered(name, leniences, d):
  """Returns where a rule of the registry defers, [leniences, contexts]."""
  with law_checks.enable_x64(True):
    d = jax.tree.map(jnp.asarray, d)
    over = jax.vmap(jax.vmap(methods.METHODS[name].rule, (0, None)), (None, 0))
    return np.asarray(over(d, jnp.asarray(leniences)))


# In float64, its limits too; of float32 `test_every_lenience...` says more.
@pytest.mark.parametrize('name', _ALL)
def test_law_is_what_acceptance_and_residual_emit(name):
  method = methods.METHODS[name]
  leniences = audit.trial_leniences(method)
  checks = law_checks.check_law(method, leniences, True)
  limits = {method.strict, method.drafter_only} - {None}
  assert limits <= {*leniences}
  assert len(checks) == 4 + len(limits)
  assert all(check.passed for check in checks), checks


@functools.cache
def _trials(size=64):
  """Positions with gates of any kind, those of q and p among them."""
  draw = functools.partial(law_checks.draw_distributions, size=size, count=32)
  # Spikes on a flat rest, which typical acceptance keeps.
  flat, one_hot = np.full((32, size), 1 / size), np.eye(32, size)
  spikes, trials = 0.8 * flat + 0.2 * one_hot, []
  thirds = sum(np.roll(one_hot, i, 1) for i in range(3)) / 3
  for d in map(draw, law_checks.DISTRIBUTION_KINDS):
    gates = [(d.q_gate, d.p_gate), (d.q, d.p), (d.p, d.q), (d.q, d.q)]
    gates += [(one_hot, flat), (d.q, spikes), (flat, d.p)]
    gates += [(d.q, thirds)]
    # So near to p that a lenience times TV(p, q) is little; cold; a favourite.
    near = 0.999 * d.p + 0.001 * d.q
    cold = d.q**30 / (d.q**30).sum(-1, keepdims=True)
    drawn = d.q, near, cold, one_hot
    for q, (q_gate, p_gate) in itertools.product(drawn, gates):
      z = np.log(np.maximum(p_gate, 1e-30)) + 9
      trials.append(d._replace(q=q, q_gate=q_gate, p_gate=p_gate, p_logits=z))
    trials.append(trials[-1]._replace(p=one_hot - 0.2 * (one_hot - flat)))
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
  # What neither model can draw is not in the law; a mixture of raw softmaxes is
  # largest at a third token, now and then.
  neither = (q == 0) & (np.asarray(d.p) == 0)
  assert (law[:, neither] == 0).all() == (name != 'ensemble_argmax')


@pytest.mark.parametrize('name', _ALL)
def test_rejections_are_as_few_as_the_law_allows(name):
  # No verification of single tokens keeps more than sum min(pi, q); one that
  # is made from a target keeps just that; so does lenient decoding, as long
  # as it is not stricter than strict. For rules that is r * TV(p, q), Lemma 3,
  # or the sum over deferred v of max(0, q(v) - eta p(v)).
  method, evaluation = methods.METHODS[name], _evaluate(name)
  leniences = np.array(evaluation.leniences)
  for kind, values in evaluation.values.items():
    q, p = values['q'], values['p']
    kept = (q * values['acceptance']).sum(-1)
    most = np.minimum(values['law'], q).sum(-1)
    assert (kept <= most + 1e-12).all()
    if name not in _NOT_LEAST:
      some = leniences >= (0 if name == 'speed' else -np.inf)
      np.testing.assert_allclose(kept[some], most[some], atol=1e-12)
    if method.rule is None:
      continue
    r = _registered(name, leniences, law_checks.draw_distributions(kind))
    if name == 'typical':
      # A yes-or-no acceptance rejects whatever it defers.
      rejected = (r * q).sum(-1)
    elif r.ndim == 2:
      rejected = r * np.maximum(0, p - q).sum(-1)
    else:
      eta = (r * q).sum(-1, keepdims=True)
      rejected = (r * np.maximum(0, q - eta * p)).sum(-1)
    np.testing.assert_allclose(1 - kept, rejected, atol=1e-12)


def _kl(x, y):
  return (x * np.log(np.where(x > 0, x / y, 1))).sum(-1)


def test_mentored_keeps_within_its_divergence_and_uses_it():
  evaluation = _evaluate('mentored')
  d = evaluation.values['random']
  for lenience, pi in zip(evaluation.leniences, d['law'], strict=True):
    spent, most = _kl(pi, d['p']), _kl(d['q'], d['p'])
    allowed = max(lenience, 0)
    assert (spent <= allowed + 1e-9).all()
    np.testing.assert_allclose(spent, np.minimum(allowed, most), atol=1e-6)


def test_cactus_averages_the_residuals_of_the_rejected():
  # Against the plain sum over every rejected x.
  evaluation = _evaluate('cactus')
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


def _reference_inputs(case):
  """Distributions in the dtype of the logits, [V, 1, V] each."""
  both = [jnp.array(case[f'logits_{size}']) for size in ('small', 'large')]

  def probs(logits):
    if not case['temperature']:
      return jax.nn.one_hot(jnp.argmax(logits), len(logits), dtype=logits.dtype)
    return jax.nn.softmax(logits / case['temperature'])

  rows = *map(probs, both), *map(jax.nn.softmax, both)
  return [jnp.tile(x[None, None], (len(both[0]), 1, 1)) for x in rows]


def test_parity_with_the_notebook():
  compared = 0
  with law_checks.enable_x64(True):
    for case in _CASES:
      inputs = _reference_inputs(case)
      size = len(inputs[0])
      named = case['method'], case['lenience']
      fns = methods.get_acceptance_residual_fns(*named)
      a, r = (np.asarray(f(*inputs, jnp.arange(size)[:, None])) for f in fns)
      assert (a.shape, r.shape) == ((size, 1), (size, 1, size))
      want = np.array(case['acceptance'])
      # Under 1e-10 the notebook floors q in its quotient, and rejects what
      # the law keeps; the mass of such tokens is nothing.
      drawn = np.asarray(inputs[0][0, 0]) > 1e-10
      np.testing.assert_allclose(a[drawn, 0], want[drawn], 1e-9, 1e-9)
      mass = np.array(case['residual_unnormalized'])
      if mass.sum() > 1e-6:
        np.testing.assert_allclose(r[0, 0], mass / mass.sum(), atol=1e-9)
        compared += 1
  assert compared > 100


def test_a_method_is_found_by_its_names_and_pickled_as_one(monkeypatch):
  method = methods.METHODS['token_v3']
  assert methods.get_method('cascade_tokenV3') is method
  # By its name, so that another process compiles it once.
  assert pickle.loads(pickle.dumps(method)) is method
  mine = small.of_target(lambda d, _: d.p, name='cascade_opt')
  monkeypatch.setitem(methods.METHODS, mine.name, mine)
  assert methods.get_method('cascade_opt') is mine


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


@pytest.mark.parametrize('gamma', [4, 1])
def test_tokens_per_block(gamma):
  # E = (1 - b^(gamma + 1)) / (1 - b), with b = sum min(pi, q), where every
  # draft of a block is like the first.
  model = table_models.TableModel(4, contexts=1)
  tables = [model.init_params(jax.random.key(i), scale=0.6) for i in (5, 6)]
  d = table_models.table_distributions(*tables, processing.SamplingParams())
  pairs = [(methods.METHODS['token_v3'], 0.6), (methods.METHODS['speed'], 0.0)]
  table = table_models.Table.from_methods(pairs, d)
  b = np.minimum(table.law[:, 0], table.q[0]).sum(-1)
  np.testing.assert_allclose(b, [0.84, 0.65], atol=0.01)
  blocks = enumeration.blocks(table, verification.STANDARD, model, (), gamma)
  tokens = sum(len(block) * chance for block, chance in blocks)
  expected = (1 - b ** (gamma + 1)) / (1 - b)
  np.testing.assert_allclose(tokens, expected, rtol=1e-5)


def _tables(count=400, size=7, seed=0):
  """Returns q and p of many contexts, in float64."""
  return np.random.default_rng(seed).dirichlet(np.full(size, 0.6), (2, count))


def _tv(q, p):
  return np.maximum(0, p - q).sum(-1)


def _curve(loss_q, loss_p, q, p):
  """Budgets and losses of r = [loss(q) > loss(p) + lam TV(p, q)], by lam."""
  price = _tv(q, p)
  gain = loss_q - loss_p
  ratios = np.unique(gain[gain > 0] / price[gain > 0])
  # Between two ratios, never at one: there rounding would choose. Joining the
  # points is what randomising at a tie does.
  lams = [np.inf, *((ratios[1:] + ratios[:-1]) / 2)[::-1], 0.0]
  points = []
  for lam in lams:
    r = gain > lam * price
    points.append(((r * price).mean(), np.where(r, loss_p, loss_q).mean()))
  budgets, losses = np.array(points).T
  assert (np.diff(budgets) >= 0).all()
  assert (np.diff(losses) <= 1e-15).all()
  return budgets, losses


def test_opt_is_optimal_for_what_the_models_believe():
  # With 1 - max q and 1 - max p in the place of the losses, the lemma's rule is
  # OPT, and its points lie on the curve. Diff is the same at lenience 0.
  q, p = _tables()
  d = methods.Distributions(q, p, q, p)
  losses = 1 - q.max(-1), 1 - p.max(-1)
  budgets, lowest = _curve(*losses, q, p)
  leniences = np.linspace(0, 5, 201)
  for name in ('opt', 'diff', 'chow'):
    r = _registered(name, leniences, d).astype(float)
    spent = (r * _tv(q, p)).mean(-1)
    got = ((1 - r) * losses[0] + r * losses[1]).mean(-1)
    above = got - np.interp(spent, budgets, lowest)
    assert (above >= -1e-12).all()
    assert above.max() <= 1e-12 if name == 'opt' else above.max() > 1e-3
    assert name == 'chow' or abs(above[0]) < 1e-12
    assert name == 'chow' or len(np.unique(spent)) > 20


def _rules(q, p, qg, pg, z, lam):
  """The rules by name: where they defer."""
  top_q, top_p, center = qg.max(-1), pg.max(-1), (qg + pg) / 2
  favourite = np.take_along_axis(pg, qg.argmax(-1)[:, None], -1)[:, 0]
  eps, entropy = 1 - lam, -(pg * np.log(pg)).sum(-1, keepdims=True)
  three = np.sort(pg)[:, -3:]
  three = three / three.sum(-1, keepdims=True)
  first, second = np.sort(z)[:, :-3:-1].T[..., None]
  return {
    'chow': top_q < 1 - lam,
    'diff': top_q < top_p - lam,
    'opt': top_q < top_p - lam * np.abs(p - q).sum(-1) / 2,
    'token_v1': qg < top_p[:, None] - lam,
    'token_v2': pg < top_p[:, None] - lam,
    'token_v3': pg < (1 - lam) * top_p[:, None],
    'bild': -np.log(favourite) > lam,
    'fuzzy_tv': np.abs(pg - qg).sum(-1) / 2 > lam,
    'fuzzy_kl_qp': _kl(qg, pg) > lam,
    'fuzzy_kl_pq': _kl(pg, qg) > lam,
    'fuzzy_js': _kl(pg, center) / 2 + _kl(qg, center) / 2 > lam,
    'fuzzy_js_unbounded': _kl(center, pg) / 2 + _kl(center, qg) / 2 > lam,
    'undecided': -(three * np.log(three)).sum(-1) / np.log(3) < 1 - lam,
    'typical': (pg <= np.minimum(eps, np.sqrt(max(eps, 0)) * np.exp(-entropy))),
    'margin': (first <= 0) | (z < second) | (z < (1 - lam) * first),
  }


@pytest.mark.parametrize('name', [x for x in _ALL if methods.METHODS[x].rule])
def test_rules_are_their_formulas(name):
  # The gates are not what is sampled from: which of them is seen shows.
  d = law_checks.draw_distributions('random', count=200)
  leniences = np.random.default_rng(0).uniform(-0.5, 2, 60)
  got = _registered(name, leniences, d)
  want = [_rules(*d[:5], lam)[name] for lam in leniences]
  np.testing.assert_array_equal(got, want)
  assert 0.02 < np.mean(want) < 0.98


def _lossy(q, p, lam):
  """max(min(q, p / (1 - lam)), p / b), b by bisection for each row."""
  kept = np.minimum(q, p / (1 - lam))
  low, high = np.zeros((len(q), 1)), np.full((len(q), 1), 1 / (1 - lam))
  for _ in range(100):
    middle = (low + high) / 2
    more = np.maximum(kept, middle * p).sum(-1, keepdims=True) > 1
    low, high = np.where(more, low, middle), np.where(more, middle, high)
  return np.maximum(kept, low * p)


def _speed(q, p, lam):
  """min(q, p / (1 - lam)); rejected mass goes to norm(max(0, p - q))."""
  kept = np.minimum(q, p / (1 - lam))
  rest = np.maximum(0, p - q)
  rest = rest / rest.sum(-1, keepdims=True)
  return kept + (1 - kept.sum(-1, keepdims=True)) * rest


def _contrastive(q, p, lam):
  """p^(1 + lam) / q^lam where p is at least a tenth of its largest."""
  return np.where(p >= 0.1 * p.max(-1, keepdims=True), p * (p / q) ** lam, 0)


def _least(name, p, lam):
  """The least probability that a truncation of p keeps, [rows, 1]."""
  order = -np.sort(-p, -1)
  entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
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


_TARGETS = {
  'ensemble': lambda q, p, lam: lam * q + (1 - lam) * p,
  'lossy': _lossy,
  'speed': _speed,
  'contrastive': _contrastive,
}
_TRUNCATED = 'min_p', 'top_p', 'top_k', 'eta'


@pytest.mark.parametrize('name', [*_TARGETS, *_TRUNCATED])
def test_targets_are_their_formulas(name):
  q, p = _tables(100)
  atol = 1e-13 if name == 'speed' else 1e-12
  more = (2.0, 3.5, 7.0, 9.0) if name == 'top_k' else ()
  with law_checks.enable_x64(True):
    d = methods.Distributions(*(jnp.asarray(x) for x in (q, p, q, p)))
    for lam in (0.0, 0.05, 0.3, 0.7, 0.95, 0.999, *more):
      law = jax.vmap(methods.METHODS[name].law, (0, None))(d, jnp.asarray(lam))
      if name in _TRUNCATED:
        want = np.where(p >= _least(name, p, lam), p, 0)
      else:
        want = _TARGETS[name](q, p, lam)
      want = want / want.sum(-1, keepdims=True)
      np.testing.assert_allclose(law, want, atol=atol)


@pytest.mark.parametrize('shape', [(2, 5), (4, 3), (9, 2), (9, 3), (5, 12)])
def test_rows_of_a_block_differ_and_of_a_draft_where_not_all_fit(shape):
  size, depth = shape
  model = table_models.TableModel.injective(size, depth, max_contexts=200)
  texts = sum(size**length for length in range(depth + 1))
  assert model.contexts <= 200
  if model.contexts == texts:
    # Wherever the block begins, and whatever is before it.
    for start in range(depth + 2):
      prompt = [(3 * i + start) % size for i in range(start)]
      pairs = table_models.draft_pairs(model, prompt, depth)
      assert len(np.unique(pairs)) == texts
  rng = np.random.default_rng(0)
  for _ in range(50):
    tokens = rng.integers(size, size=rng.integers(4) + depth)
    ends = range(len(tokens) - depth, len(tokens) + 1)
    assert len({model.context_after(tokens[:i]) for i in ends}) == depth + 1


def test_only_rows_that_are_too_near_are_drawn_again():
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.ones(4), (2, 30))
  p[3] = q[7]
  draw = lambda rng, n: rng.dirichlet(np.ones(4), n)  # noqa: E731
  new_q, new_p = table_models.separate(q, p, draw)
  np.testing.assert_array_equal(new_q, q)
  assert 3 in (places := (new_p != p).any(1).nonzero()[0])
  assert len(places) < 5
  with pytest.raises(ValueError, match='120 distributions of 2 tokens do not'):
    law_checks.draw_distributions('random', 60, 2)


_LOGITS = jnp.array([2.0, 1.0, 0.5, 0.5, -1.0])


def _probs(logits=_LOGITS, **sampling):
  params = processing.SamplingParams(**sampling)
  return np.asarray(processing.processed_probs(logits, params))


@pytest.mark.parametrize('temperature', [1e-5, 0.1, 0.5, 1.0])
@pytest.mark.parametrize('sign', [1, -1])
def test_finite_logits_do_not_overflow(temperature, sign):
  logits = sign * jnp.float32([3e38, 2e38, 3e38, -3e38])
  want = [0.5, 0, 0.5, 0] if sign > 0 else [0, 0, 0, 1]
  np.testing.assert_array_equal(_probs(logits, temperature=temperature), want)


def test_the_likeliest_is_that_of_an_argmax():
  some = np.random.default_rng(0).integers(0, 4, (5, 7, 9))
  values = np.where(some == 3, -np.inf, some).astype(np.float32)
  values[0, 0] = -np.inf
  found = processing.argmax_lowest_id(jnp.asarray(values))
  np.testing.assert_array_equal(found, values.argmax(-1))
  assert found.dtype == jnp.int32


@pytest.mark.parametrize('size', [1, 30, 1e4])
def test_small_temperatures_are_greedy_and_never_nan(size):
  logits = size * jax.random.normal(jax.random.key(0), (64, 9))
  over = jax.jit(jax.vmap(processing.processed_probs, (0, None)))
  greedy = over(logits, processing.SamplingParams(temperature=0.0))
  for power in (*range(46), 320):
    temperature = np.float32(10.0**-power)
    got = over(logits, processing.SamplingParams(temperature=temperature))
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    if 10.0**-power < processing.GREEDY_BELOW:
      np.testing.assert_array_equal(got, greedy)
    elif power < 3:
      want = jax.nn.softmax(logits * 10**power)
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('temperature', [0.0, 0.7])
def test_devices_that_make_no_choice_give_the_same(monkeypatch, temperature):
  given = dict(temperature=temperature, top_p=0.9, forbidden=_LOGITS == 0.5)
  want = _probs(**given)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  np.testing.assert_array_equal(_probs(**given), want)


def test_what_is_forbidden_leaves_a_distribution():
  # Of a token that was chosen, all but one logit are -inf.
  chosen = jnp.where(jnp.arange(5) == 2, 0.0, -jnp.inf)
  forbidden = jnp.array([True, False, True, False, False])
  for logits in chosen, _LOGITS:
    for temperature in (0.0, 1.0):
      got = _probs(logits, temperature=temperature, forbidden=forbidden)
      assert got.sum() == pytest.approx(1, abs=1e-6)
      np.testing.assert_array_equal(got[np.asarray(forbidden)], 0)
  assert _probs(temperature=0.0, forbidden=forbidden)[1] == 1


def _kept_by_sorting(probs, k, share):
  """Which tokens a plain sort keeps, in float64."""
  probs = np.asarray(probs, np.float64)
  ordered = np.sort(probs)[::-1]
  ordered = ordered[ordered >= ordered[min(k, len(ordered)) - 1]]
  before = np.concatenate([[0], np.cumsum(ordered)[:-1]])
  inside = ordered[(before < share * ordered.sum()) | (ordered == ordered[0])]
  return probs >= inside.min()


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_what_is_kept_is_what_a_sort_keeps(dtype):
  # Of sixteenths many are equal, and every sum is exact.
  rows = np.random.default_rng(0).multinomial(16, np.full(9, 1 / 9), 200) / 16
  # The mass of a top-p is that of what top-k leaves.
  for k, share in (1, 1.0), (3, 0.5), (9, 0.25), (5, 0.0), (20, 1.0), (2, 0.7):
    cut = functools.partial(processing.truncate, top_k=k, top_p=share)
    got = np.asarray(jax.vmap(cut)(jnp.asarray(rows, dtype)))
    assert got.dtype == dtype
    for row, kept in zip(rows, got > 0, strict=True):
      want = _kept_by_sorting(row, k, share) & (row > 0)
      assert kept.tolist() == want.tolist(), (row, k, share)


def test_probabilities_are_float32_whatever_they_are_made_of():
  got = _probs(_LOGITS.astype(jnp.bfloat16), top_p=0.9)
  assert got.dtype == np.float32
  assert got.sum() == pytest.approx(1, abs=1e-6)
  with law_checks.enable_x64(True):
    assert _probs(temperature=np.float64(0.7)).dtype == np.float32


def test_borders_do_not_hang_on_rounding():
  # The least of the kept tokens used to be lost where both were set: the sorted
  # and the unsorted probabilities were normalised in different orders.
  logits = 2 * jax.random.normal(jax.random.key(0), (2000, 5))
  sampling = processing.SamplingParams(top_k=5, top_p=1.0)
  probs = jax.vmap(processing.processed_probs, (0, None))(logits, sampling)
  assert (probs > 0).all()
