"""Caps on any rule: what they say is inside, and the laws that they leave."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from cascades import (
  Sampler,
  decoding,
  drafters,
  load_model,
  methods,
  verification,
)
from cascades.contrib import capping
from cascades.methods import processing
from cascades.proof import audit, exact

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
  inside = capping.parse('top:3').inside(jnp.full(5, jnp.nan))
  assert not inside.any()


@functools.cache
def _evaluated(name, x64):
  """Rows with caps, leniences, and what a method says with and without."""
  method = methods.METHODS[name]
  with jax.enable_x64(x64):
    dtype = jnp.float64 if x64 else jnp.float32
    rows = [exact.rows(kind, 32) for kind in exact.KINDS]
    d = jax.tree.map(lambda *x: np.concatenate(x), *rows)
    d = jax.tree.map(lambda x: jnp.asarray(x, dtype), d)
    top = jnp.arange(d.q.shape[0]) % 4 + 1
    inside = jax.vmap(lambda p, top: capping.Cap(top, 0.5).inside(p))
    d = d._replace(cap=inside(d.p_gate, top))

    @jax.jit
    def run(d, leniences):
      def one(d, lenience):
        capped = capping.capped(method)
        said = [
          getattr(capped, field)(d, lenience)
          for field in ('acceptance', 'residual', 'law')
        ]
        return *said, method.law(d, lenience)

      return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(d, leniences)

    leniences = audit.leniences(method, 20)
    return jax.device_get((d, run(d, jnp.asarray(leniences, dtype))))


@pytest.mark.parametrize('name', _ALL)
@pytest.mark.parametrize('x64', tiers.first([True, False]), ids=['64', '32'])
def test_a_capped_method_emits_its_law(name, x64):
  d, (a, residual, law, free) = _evaluated(name, x64)
  close = 1e-12 if x64 else 3e-6
  np.testing.assert_allclose(law.sum(-1), 1, atol=close)
  assert (law >= 0).all()
  kept = d.q * a
  emitted = kept + (d.q - kept).sum(-1, keepdims=True) * residual
  np.testing.assert_allclose(emitted, law, atol=1e-9 if x64 else 3e-6)
  outside = ~d.cap
  assert (law - d.p)[:, outside].max() <= close
  # Nothing is cut where nothing stands out.
  fits = (free <= np.where(d.cap, 2, d.p)).all(-1)
  np.testing.assert_array_equal(law[fits], free[fits])
  # And no more than what has to be: what is inside keeps what it had.
  assert (law - free)[:, d.cap].min() >= -close
  if name in ('drafter_only', 'token_v3', 'ensemble', 'always_accept'):
    assert (~fits).any()


def test_a_capped_rule_is_strict_where_the_method_is():
  for name in _ALL:
    method = methods.METHODS[name]
    assert capping.capped(method) is capping.capped(method)
    assert capping.capped(method).strict == method.strict
    assert capping.capped(method).drafter_only is None


@pytest.mark.parametrize(
  ('kind', 'drafts'),
  tiers.first(
    [
      *(('token', 1), ('block', 1), ('traversal', 2), ('match', 2)),
      *(('multi_round', 2), ('k_seq', 2)),
    ]
  ),
)
def test_the_loop_follows_a_capped_law(kind, drafts):
  model, n, new, prompt = exact.TableModel.injective(4, 3), 20_000, 3, (1, 2, 3)
  keys = jax.random.split(jax.random.key(1))
  tables = exact.random_tables(model, keys, scale=1.5)
  how = processing.Processing(
    temperature=np.float32(1), cap=capping.parse('top:2 delta:0.4')
  )
  method, lenience = methods.METHODS['ensemble'], 0.8
  d = exact.table_distributions(*tables, how)
  pairs = exact.context_pairs(model, prompt, 3)
  exact.check_distances(np.asarray(d.q), np.asarray(d.p), pairs)
  table, free = (
    exact.Table.of([(m, lenience)], d) for m in (capping.capped(method), method)
  )
  decoder = decoding.Decoder(
    decoding.Models(model, drafters.ModelDrafter(model)),
    capping.capped(method),
    3,
    verification.Scheme(kind),
    drafts,
  )
  keys = jax.random.split(jax.random.key(0), n)
  asked = exact.Asked([prompt] * n, keys, [lenience], new)
  rows = exact.decode_curve(decoder, tables, asked, how, room=8)
  tokens = rows.tokens[:, 0, len(prompt) :][:, :new]
  z, other = (
    exact.z_scores(tokens, exact.declared_law(t, model, prompt, new)[0])
    for t in (table, free)
  )
  assert np.abs(z).max() < 5 < np.abs(other).max() / 2


@pytest.mark.slow
@pytest.mark.parametrize('kind', verification.SEVERAL)
def test_several_drafts_keep_every_capped_law(kind):
  """By enumeration: every block of two drafts of two tokens."""
  model, prompt = exact.TableModel.injective(3, 2), (0, 1)
  keys = jax.random.split(jax.random.key(2))
  tables = exact.random_tables(model, keys, scale=1.5)
  how = processing.Processing(
    temperature=np.float32(1), cap=capping.parse('top:1 delta:0.4')
  )
  pairs = [
    (capping.capped(method), 0.4)
    for method in methods.METHODS.values()
    if method.single_target
  ]
  with jax.enable_x64(True):
    d = exact.table_distributions(*tables, how)
    table = exact.Table.of(pairs, d)
  emitted = exact.emitted_law(
    table, verification.Scheme(kind), model, prompt, 2, 2, drafts=2
  )
  declared = exact.declared_law(table, model, prompt, 2)
  np.testing.assert_allclose(emitted, declared, atol=2e-6)


@functools.cache
def _sampler(**options):
  pair = load_model('tiny-verifier'), load_model('tiny-drafter')
  return Sampler(*pair, **dict(method='token_v1', lenience=0.6) | options)


def _tokens(**options):
  asked = ['Q: 3 + 4\nA:', 'Tom has 5 apples.']
  answers = _sampler(**options).sample(asked, max_new_tokens=24, seed=3)
  return [answer.tokens for answer in answers]


@pytest.mark.slow
def test_a_cap_that_holds_everything_is_none():
  assert _tokens(cap='delta:1') == _tokens()
  sizes = decoding.decode._cache_size()
  assert _tokens(cap='delta:0.01') != _tokens()
  # Another number compiles nothing.
  assert decoding.decode._cache_size() == sizes


def test_a_margin_wants_logits():
  d = exact.rows('random', 1)
  d = jax.tree.map(lambda x: jnp.asarray(x[0]), d)._replace(p_logits=None)
  with pytest.raises(ValueError, match='margin: it looks at raw logits'):
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
