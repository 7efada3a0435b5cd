"""Caps on any rule: what they say is inside, and the laws that they leave."""

import decoding_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from cascades import decoding, methods, verification
from cascades.contrib import capping
from cascades.methods import processing
from cascades.proof import audit, exact, law_checks

_ALL = list(methods.METHODS)


@pytest.mark.parametrize(
  ('said', 'want'),
  [
    ('top:1', [0, 1, 0, 0, 0]),
    ('top:2', [1, 1, 0, 1, 0]),
    ('top:3', [1, 1, 0, 1, 0]),
    ('top:9', [1, 1, 1, 1, 1]),
    ('delta:0', [0, 1, 0, 0, 0]),
    ('delta:0.2', [1, 1, 0, 1, 0]),
    ('delta:1', [1, 1, 1, 1, 1]),
    ('top:2 delta:0.1', [0, 1, 0, 0, 0]),
    ('delta:0.25 top:1', [0, 1, 0, 0, 0]),
  ],
)
def test_what_is_inside(said, want):
  # Ties stay together.
  p = jnp.array([0.25, 0.375, 0.125, 0.25, 0.0])
  inside = jax.jit(lambda p, cap: cap.inside(p))(p, capping.parse(said))
  assert inside.astype(int).tolist() == want


def test_a_cap_ends_where_a_model_says_nan():
  assert not capping.parse('top:3').inside(jnp.full(5, jnp.nan)).any()


@pytest.mark.parametrize('name', _ALL)
@pytest.mark.parametrize('x64', tiers.first([True, False]), ids=['64', '32'])
def test_a_capped_method_emits_its_law(name, x64):
  method, cap, cut = methods.METHODS[name], capping.Cap(2, 0.5), False
  leniences = audit.trial_leniences(method, 20)
  capped, uncapped = (
    law_checks.evaluate(
      law_checks.AuditSpec(method=variant, reported=(), cap=cap), leniences, x64
    )
    for variant in (capping.capped(method), method)
  )
  for check in law_checks.check_law(capped, 1e-9 if x64 else 3e-6):
    assert check.passed, check
  close = 1e-12 if x64 else 3e-6
  for kind, values in capped.values.items():
    law, p = values['law'], values['p']
    pi = uncapped.values[kind]['law']
    with exact.enable_x64(x64):
      gates = jnp.asarray(exact.draw_distributions(kind).p_gate, p.dtype)
      inside = np.asarray(jax.vmap(cap.inside)(gates))
    np.testing.assert_allclose(law.sum(-1), 1, atol=close)
    assert (law >= 0).all()
    assert (law - p)[:, ~inside].max() <= close
    # Nothing is cut where nothing stands out.
    fits = (pi <= np.where(inside, 2, p)).all(-1)
    np.testing.assert_array_equal(law[fits], pi[fits])
    cut |= not fits.all()
    # And no more than what has to be: what is inside keeps what it had.
    assert (law - pi)[:, inside].min() >= -close
  lenient = 'drafter_only', 'token_v3', 'ensemble', 'always_accept'
  assert cut or name not in lenient


def test_a_capped_rule_is_strict_where_the_method_is():
  for name in _ALL:
    method = methods.METHODS[name]
    assert capping.capped(method) is capping.capped(method)
    assert capping.capped(method).strict == method.strict
    assert capping.capped(method).drafter_only is None


def test_the_loop_follows_a_capped_law():
  # By token; audit_test samples all other verifications of a capped method.
  method, lenience = methods.METHODS['ensemble'], 0.8
  capped = capping.capped(method)

  def drawn(cap):
    sampling = processing.SamplingParams(np.float32(1), cap=capping.parse(cap))
    d = decoding_test.seen_of_model(verification.STANDARD, sampling)
    table = exact.Table.from_methods(
      [(capped, lenience), (method, lenience)], d
    )
    asked = decoding_test._MODEL, decoding_test._PROMPT, 3
    rows = decoding_test._generate(
      *(capped, [lenience], 3, 20_000), sampling=sampling, return_logits=False
    )
    laws = exact.declared_law(table, *asked)
    return [exact.z_scores(rows.tokens[:, 0, 3:6], law) for law in laws]

  z, free = drawn('top:2 delta:0.4')
  assert np.abs(z).max() < 5 < np.abs(free).max() / 2
  sizes = decoding.decode._cache_size()
  z, free = drawn('top:5 delta:1')
  # It holds everything; and another number compiles nothing.
  assert np.abs(z).max() < 5 > np.abs(free).max()
  assert decoding.decode._cache_size() == sizes


def test_a_margin_wants_logits():
  d = exact.draw_distributions('random', 1)
  d = jax.tree.map(lambda x: jnp.asarray(x[0]), d)._replace(p_logits=None)
  with pytest.raises(ValueError, match='method: margin needs raw logits'):
    methods.METHODS['margin'].law(d, 0.1)


def test_odd_rows_have_margins_and_entropies():
  # Equal logits, none above 0, a lenience beyond strict; and no third token.
  margin, undecided = (
    methods.METHODS[name].rule for name in ('margin', 'undecided')
  )
  for z, lenience, want in (
    ([10.0, 10.0, 9.4, 1.0], 0.0, [0, 0, 1, 1]),
    ([-1.0, -2.0, -3.0, -4.0], 0.5, [1, 1, 1, 1]),
    ([10.0, 9.5, 9.4, 1.0], -1.0, [1, 1, 1, 1]),
  ):
    rows = jax.nn.softmax(jnp.array(z))
    d = methods.Distributions(*4 * (rows,), jnp.array(z))
    assert margin(d, lenience).astype(int).tolist() == want
  for p, lenience, want in (
    # Entropies of the top three by log 3: .63, 0.
    ([0.5, 0.5, 0.0, 0.0], 0.3, True),
    ([0.5, 0.5, 0.0, 0.0], 0.4, False),
    ([1.0, 0.0, 0.0, 0.0], 0.99, True),
    ([1.0, 0.0, 0.0, 0.0], 1.0, False),
  ):
    d = methods.Distributions(*4 * (jnp.array(p),))
    assert bool(undecided(d, lenience)) == want
