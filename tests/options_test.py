"""Options: what each changes, and what is counted."""

import math

import jax
import numpy as np
import pytest
import small
import tiers

from cascades import methods, verification
from cascades.arguments import Registry, options_of
from cascades.config import DecodingConfig
from cascades.sampler import scoring
from cascades.verification_config import BONUS, DRAFT, RESIDUAL
from experiments.sweeps import curve_plan

_PROMPTS = [f'The number {i} in words:' for i in range(1000, 1016)]
# What decodes: the verifier alone, and each verification.
_KINDS = {'alone': dict(gamma=0)} | {
  kind: dict(verification=kind, gamma=2)
  | (dict(drafts=2) if kind in verification.MULTI_DRAFT else {})
  for kind in verification.VERIFICATIONS
}
_KINDS['look_ahead'] = dict(verification='look_ahead:2', gamma=2)
_OF_ONE_DRAFT = ('token', 'block', 'look_ahead')


@pytest.mark.usefixtures('wrong_types')
def test_entries_are_looked_up_by_name():
  registry = Registry('colour', int)
  registry.register('red', 1, builtin=True)
  assert registry.register('blue', 2) == registry.register('blue', 2) == 2
  assert tuple(registry) == ('red', 'blue')
  assert registry.core() == {'red': 1}
  assert not registry.is_builtin('blue')
  with pytest.raises(ValueError, match=r"^colour: 'bleu' .* 'blue'\? Choose"):
    registry['bleu']
  for name in (None, 3, b'red', ('red',), '', 'r' * 10_000):
    with pytest.raises(ValueError, match=r'^colour: ') as caught:
      registry[name]
    assert len(str(caught.value)) < 300


def test_the_default_lenience_is_the_strict_one_of_each_method():
  for name, method in methods.METHODS.items():
    config = DecodingConfig(method='speed').replace(method=name)
    assert config.lenience is None
    assert config.replace(gamma=0).is_lossless
    if method.strict is not None:
      assert config.is_lossless
      assert config.effective_lenience == method.strict
  assert not DecodingConfig(method='drafter_only').is_lossless


def test_a_method_without_a_strict_lenience_is_refused_where_it_decodes():
  rule = small.of_target(lambda d, lenience: d.p + 0 * lenience)
  for method in ('contrastive', rule):
    decoder = small.sampler(*small.tables(), method=method, cache_length=256)
    for run, *arguments in (
      (decoder.sample, 'x'),
      (lambda prompt, decoder=decoder: [*decoder.stream(prompt)], 'x'),
      (scoring.score, decoder, [([1], [2])]),
    ):
      with pytest.raises(ValueError, match=r'^lenience: must be given for'):
        run(*arguments)
    assert decoder.sample_curve(['x'], [0.3], max_new_tokens=2)
  rule = small.of_target(lambda d, lenience: d.q, has_lenience=False)
  for method in ('drafter_only', rule):
    decoder = small.sampler(*small.tables(), method=method, cache_length=256)
    assert decoder.sample('x', max_new_tokens=2).tokens


def _reads(fn):
  """Names the arguments of a rule that its program uses."""
  row = np.full(4, 0.25, np.float32)
  d = methods.Distributions(*5 * (row,))
  jaxpr = jax.make_jaxpr(fn)(d, 0.5).jaxpr
  used = [x for eqn in jaxpr.eqns for x in eqn.invars] + jaxpr.outvars
  names = zip((*d._fields, 'lenience'), jaxpr.invars, strict=True)
  return {name for name, x in names if any(x is y for y in used)}


@pytest.mark.parametrize(
  'method', methods.METHODS.values(), ids=lambda m: m.name
)
def test_a_method_declares_what_it_reads(method):
  fns = method.acceptance, method.residual, method.law, method.rule
  names = set().union(*(_reads(fn) for fn in fns if fn))
  assert ('lenience' in names) == method.has_lenience
  assert bool(names & {'q_gate', 'p_gate'}) == method.reads_gates
  # The rule of `margin` looks at logits.
  looks = method.reads_gates or 'p_logits' in names
  assert looks == (method.rule is not None)
  for lenience in (method.strict, method.drafter_only):
    config = DecodingConfig(method=method, lenience=lenience)
    assert config.lenience == lenience


def test_a_sweep_drops_what_a_curve_does_not_look_at():
  config = dict(gate='processed', bonus='verifier', temperature=0.0)
  for method in ('speed', 'min_p', 'always_accept'):
    curve = curve_plan.Curve.from_config(config, method, (0.0,), gamma=4)
    assert curve.options['gate'] == 'raw'
    assert curve.options['bonus'] == 'verifier'
  (lenient,) = curve_plan.plan_curves(
    config | dict(method='opt', lenience=(0.1,), gamma=4), None, {}
  )
  assert lenient.options['gate'] == 'processed'


@pytest.mark.usefixtures('few_shapes')
@pytest.mark.parametrize(
  ('drafter', 'kind'),
  tiers.first(
    [
      *(('ngram', kind) for kind in _OF_ONE_DRAFT),
      ('ngram:1', 'token'),
      *((None, kind) for kind in _KINDS if kind != 'alone'),
    ]
  ),
)
def test_all_kinds_of_decoding_share_one_definition_of_each_count(
  drafter, kind
):
  verifier, model = small.tables()
  options = _KINDS[kind] | dict(lenience=0.5, cache_length=256)
  sampler = small.sampler(verifier, drafter or model, **options)
  answers = sampler.sample(_PROMPTS, max_new_tokens=16)
  # No 9 of 12 tokens stood there before: look-up of so many has nothing to say.
  total = sum(answer.counts['drafted'] for answer in answers)
  assert (total > 0) == (drafter != 'ngram')
  for answer in answers:
    counts, sources = answer.counts, np.array(answer.sources)
    emitted = [(sources == x).sum() for x in (DRAFT, RESIDUAL, BONUS)]
    assert emitted == [counts[x] for x in ('accepted', 'residual', 'bonus')]
    assert sum(emitted) == len(answer.tokens)
    # Each rejected draft is replaced by a token of the residual.
    assert counts['examined'] == sum(emitted[:2])
    assert counts['deferred'] <= counts['examined'] <= counts['drafted']
    rate = emitted[0] / counts['examined'] if counts['examined'] else math.nan
    np.testing.assert_equal(answer.acceptance_rate, rate)
    calls, read = counts['verifier_calls'], counts['verifier_tokens']
    assert calls <= read
    assert counts['drafted'] or emitted[2] == calls == read == sum(emitted)
    assert (counts['drafter_calls'] > 0) == (drafter is None)


def test_a_sweep_ignores_no_option_of_its_config():
  values = dict(gamma=6, temperature=0.2, top_k=1, top_p=0.3, cache_length=20)
  values |= dict(gate='processed', bonus='verifier', drafts=3, tree_size=3)
  values |= dict(verification='multi_round')
  # Those are the curve's own, or are set for each batch.
  own = {'method', 'lenience', 'batch_size'}
  assert values.keys() == options_of(DecodingConfig).keys() - own
  needs = dict(drafts=dict(verification='multi_round'))
  needs['tree_size'] = needs['drafts'] | dict(drafts=2)
  for name, value in values.items():
    config = needs.get(name, {}) | {name: value}
    curve = curve_plan.Curve.from_config(config, 'token_v3', (0.5,))
    assert getattr(curve.config, name) == value
