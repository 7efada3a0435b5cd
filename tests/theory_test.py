"""Theorems of the papers, measured; their formulas in numpy.

Leviathan et al. 2023 (arXiv 2211.17192) for the tokens of a block;
Narasimhan et al. 2025 (arXiv 2405.19261) for the rest.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cascades import methods, verification
from cascades.methods import processing
from cascades.proof import enumeration, law_checks, sampled, table_models

# --- Tokens per block.


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


# --- Lemma 4: whom to defer to.


def _tables(count=400, size=7, seed=0):
  """Returns q and p of many contexts, in float64."""
  return np.random.default_rng(seed).dirichlet(np.full(size, 0.6), (2, count))


def _tv(q, p):
  return np.maximum(0, p - q).sum(-1)


def _curve(loss_q, loss_p, q, p):
  """Budgets and losses of the optimal rule, from strict lam to lam = 0.

  It defers where loss(q) > loss(p) + lam TV(p, q); its budget is the mean of r
  TV(p, q), the rejection rate.
  """
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


def _registered(name, leniences, d):
  """Returns where a rule of the registry defers, [leniences, contexts]."""
  with law_checks.enable_x64(True):
    d = jax.tree.map(jnp.asarray, d)
    over = jax.vmap(jax.vmap(methods.METHODS[name].rule, (0, None)), (None, 0))
    return np.asarray(over(d, jnp.asarray(leniences)), float)


def test_opt_is_optimal_for_what_the_models_believe():
  # With 1 - max q and 1 - max p in the place of the losses, the lemma's rule is
  # OPT, and its points lie on the curve. Diff is the same at lenience 0.
  q, p = _tables()
  d = methods.Distributions(q, p, q, p)
  losses = 1 - q.max(-1), 1 - p.max(-1)
  budgets, lowest = _curve(*losses, q, p)
  leniences = np.linspace(0, 5, 201)
  for name in ('opt', 'diff', 'chow'):
    r = _registered(name, leniences, d)
    spent = (r * _tv(q, p)).mean(-1)
    got = ((1 - r) * losses[0] + r * losses[1]).mean(-1)
    above = got - np.interp(spent, budgets, lowest)
    assert (above >= -1e-12).all()
    assert above.max() <= 1e-12 if name == 'opt' else above.max() > 1e-3
    assert name == 'chow' or abs(above[0]) < 1e-12
    assert name == 'chow' or len(np.unique(spent)) > 20


# --- The formulas, as they are printed.


def _kl(x, y):
  return (x * np.log(x / y)).sum(-1)


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


@pytest.mark.parametrize(
  'name', [n for n, m in methods.METHODS.items() if m.rule is not None]
)
def test_rules_are_their_formulas(name):
  # The gates are not what is sampled from: which of them is seen shows.
  d = law_checks.draw_distributions('random', count=200)
  leniences = np.random.default_rng(0).uniform(-0.5, 2, 60)
  got = _registered(name, leniences, d)
  want = [_rules(*d, lam)[name] for lam in leniences]
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


_TARGETS = {
  'ensemble': lambda q, p, lam: lam * q + (1 - lam) * p,
  'lossy': _lossy,
  'speed': _speed,
}


@pytest.mark.parametrize('name', _TARGETS)
def test_targets_are_their_formulas(name):
  q, p = _tables(100)
  atol = 1e-13 if name == 'speed' else 1e-12
  with law_checks.enable_x64(True):
    d = methods.Distributions(*(jnp.asarray(x) for x in (q, p, q, p)))
    for lam in (0.0, 0.05, 0.3, 0.7, 0.95, 0.999):
      law = jax.vmap(methods.METHODS[name].law, (0, None))(d, jnp.asarray(lam))
      np.testing.assert_allclose(law, _TARGETS[name](q, p, lam), atol=atol)


@pytest.mark.parametrize('count', [27, 0, 10])
def test_a_small_count_is_as_far_off_as_its_chance(count):
  # 10 of 10,000 are expected: their counts lean to one side.
  n, p = 10_000, 1e-3
  tokens = (np.arange(n) < count).astype(int)[:, None]
  z = sampled.z_scores(tokens, np.array([1 - p, p]))[1]
  law = stats.binom(n, p)
  tail = law.cdf(count) - law.pmf(count) / 2
  np.testing.assert_allclose(z, stats.norm.ppf(tail), atol=1e-6)
