"""A learned rule: its features, its head on disk, its pair, its training."""

import dataclasses
import functools
import json
import pickle
import re

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from answers import make_failure, make_record

import cascades
from cascades import methods
from cascades.contrib import learned, rule_fitting
from cascades.drafters import binding
from cascades.models import checkpoints
from cascades.proof import exact, tabulated
from cascades.sampler import scoring
from configs import train_rule
from experiments import records, sweep
from experiments.reports import styles
from experiments.sweeps import curve_plan, plan
from experiments.tasks import Example
from experiments.training import rules

_BUNDLED = checkpoints.ASSETS / learned.BUNDLED / learned.FILE
_NAMES, _PRINTS = ('large', 'small'), ('one', 'other')


# --- What it looks at.


def _features(qg, pg):
  """Computes features in numpy, [rows, F]; ties may go either way."""
  plogp = [x * np.log(np.where(x > 0, x, 1)) for x in (qg, pg)]
  of_q, of_p = (x == x.max(-1, keepdims=True) for x in (qg, pg))
  q_at, p_at = ((x * of).max(-1) for x, of in ((qg, of_p), (pg, of_q)))
  mq, mp, tv = qg.max(-1), pg.max(-1), np.abs(pg - qg).sum(-1) / 2
  pq, agree = (pg * qg).sum(-1), (of_q & of_p).any(-1)
  return np.stack(
    [
      *(np.ones(len(qg)), mq, mp, tv),
      *(-x.sum(-1) for x in plogp),
      *((qg * qg).sum(-1), (pg * pg).sum(-1), pq),
      *(q_at, p_at, agree),
      *(np.log(x + 1e-4) for x in (mq, mp, q_at, p_at)),
      *(tv * x for x in (tv, mq, mp, pq, q_at, p_at)),
      *(agree * mq, agree * mp, mq * mp),
    ],
    -1,
  )


@pytest.mark.parametrize('kind', exact.DISTRIBUTION_KINDS)
def test_features_are_their_formulas(kind):
  d = exact.draw_distributions(kind)
  # What is sampled from is odd where the gates are not: show both as gates.
  for q, p in (d.q_gate, d.p_gate), (d.q, d.p):
    with exact.enable_x64(True):
      rows = (jnp.asarray(x) for x in (d.q, d.p, q, p))
      got = jax.vmap(learned.features)(methods.Distributions(*rows))
    np.testing.assert_allclose(got, _features(q, p), atol=1e-12)


def test_a_favourite_of_several_is_the_likeliest_to_the_other():
  q, p = jnp.array([0.4, 0.4, 0.2]), jnp.array([0.1, 0.6, 0.3])
  d = methods.Distributions(q, p, q, p)
  said = dict(zip(learned.FEATURES, learned.features(d).tolist(), strict=True))
  assert said['p_at_mq'] == pytest.approx(0.6)
  assert said['agree'] == 1
  # Only what has a weight is computed.
  odd = d._replace(q_gate=jnp.full(3, jnp.nan))
  for feature in ('mq', 'tv'):
    h = learned.difference(odd, {'mp': 2.0, feature: 0.0})
    assert h == pytest.approx(2 * 0.6)


@pytest.mark.parametrize('kind', exact.DISTRIBUTION_KINDS)
def test_the_head_that_is_opt_is_opt(kind):
  ours, opt = learned.from_weights(learned.OPT), methods.METHODS['opt']
  leniences = [*np.linspace(-2, 2, 40), *(0.0, np.inf, -np.inf)]
  with exact.enable_x64(True):
    d = jax.tree.map(jnp.asarray, exact.draw_distributions(kind))

    def said(method):
      over = jax.vmap(jax.vmap(method.rule, (0, None)), (None, 0))
      return np.asarray(over(d, jnp.asarray(leniences)))

    found = said(ours)
    np.testing.assert_array_equal(found, said(opt))
  assert 0 < found.mean() < 1


# --- On disk.


def _folder(tmp_path, **weights):
  folder = tmp_path / 'rule'
  learned.save(folder, weights or learned.OPT, _NAMES, _PRINTS)
  return folder


def test_a_head_is_kept_and_is_one_method(tmp_path):
  folder = _folder(tmp_path, mq=-0.9, mp=1.1, one=0.01)
  name = f'learned:{folder}'
  method = methods.get_method(name)
  assert method.name == name
  _, trained = learned.read(folder / learned.FILE)
  assert trained.names == _NAMES
  assert (trained.verifier, trained.drafter) == _PRINTS
  d = jax.tree.map(
    lambda x: jnp.asarray(x[0]), exact.draw_distributions('random')
  )
  for lam in (-0.3, 0.0, 0.4):
    h = 0.01 + 1.1 * d.p_gate.max() - 0.9 * d.q_gate.max()
    assert bool(method.rule(d, lam)) == bool(
      h > lam * methods.total_variation(d.p, d.q)
    )
  # Programs are compiled for it: it must be itself the next time.
  assert methods.get_method(name) is method
  assert methods.get_method(method) is method
  assert pickle.loads(pickle.dumps(method)) is method
  # And another where there is another.
  _folder(tmp_path, mq=-0.8)
  other = methods.get_method(name)
  assert other is not method
  assert other.identity != method.identity


def test_the_bundled_head_has_the_plain_name():
  bundled = methods.METHODS['learned']
  assert methods.get_method('learned:tiny-rule') is bundled
  _, trained = learned.read(_BUNDLED)
  assert trained.names == ('tiny-verifier', 'tiny-drafter')
  assert bundled.identity == trained.identity
  verifier, drafter = map(cascades.load_model, trained.names)
  bound_drafter = binding.bind_drafter(verifier, drafter)
  found = learned.fingerprints(verifier, bound_drafter)
  assert found == (trained.verifier, trained.drafter)


def test_the_same_head_compiles_nothing_again(tmp_path):
  folder = _folder(tmp_path, mq=-0.7, mp=1.2)
  d = exact.draw_distributions('random', 4)

  def run(lenience):
    method = methods.get_method(f'learned:{folder}')
    exact.Table.from_methods([(method, lenience)], d)
    return tabulated._tabulate._cache_size()

  assert run(0.1) == run(0.4)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (dict(weights=...), 'weights is missing'),
    (dict(drafter=...), 'drafter is missing'),
    (dict(verifier='v'), 'verifier must be'),
    (dict(verifier={'name': 'v'}), 'verifier.fingerprint is missing'),
    (dict(weights=[1.0]), 'weights must be'),
    (dict(weights={'mz': 1.0}), "'mz' is not a feature; choose from one, mq"),
    *(
      (dict(weights={'mq': x}), f'weights.mq must be a valid number, got {x!r}')
      for x in (None, '1', True)
    ),
    # SummarySlice short.
    (None, 'it is damaged'),
  ],
)
def test_a_damaged_head_is_refused_in_a_sentence(tmp_path, change, said):
  folder = _folder(tmp_path)
  file = folder / learned.FILE
  fields = json.loads(file.read_text()) | (change or {})
  text = json.dumps({k: x for k, x in fields.items() if x is not ...})
  file.write_text(text if change else '{"weights": ')
  message = conftest.refused('method', methods.get_method, f'learned:{folder}')
  assert said in message
  assert str(file) in message
  assert message.endswith('train a rule with configs/train_rule.py.')
  message = conftest.refused(
    'weights', learned.from_weights, {'mq': float('nan')}
  )
  assert message.endswith('mq must be a finite number, got nan.')
  message = conftest.refused('method', methods.get_method, 'learned:nowhere')
  assert 'there is no nowhere/rule.json; train' in message


# --- Its pair.


@pytest.fixture(scope='module')
def pair():
  return tuple(map(cascades.load_model, small.pair()))


@pytest.fixture(scope='module')
def own(pair, tmp_path_factory):
  """The name of a rule for that pair."""
  verifier, drafter = pair
  bound_drafter = binding.bind_drafter(verifier, drafter)
  folder = tmp_path_factory.mktemp('own') / 'rule'
  prints = learned.fingerprints(verifier, bound_drafter)
  learned.save(folder, {'mp': 1.0, 'mq': -1.0, 'one': 0.1}, _NAMES, prints)
  return f'learned:{folder}'


def test_a_head_takes_its_own_pair(pair, own):
  verifier, drafter = pair
  for options in (
    {},
    dict(stop_below=0.5),
    dict(verification='block'),
  ):
    made = small.sampler(verifier, drafter, method=own, **options)
    assert made.config.method is methods.get_method(own)
  # In whatever order the weights lie.
  small.sampler(verifier.unpack(), drafter, method=own)


def test_a_head_of_another_pair_is_refused(pair, own):
  verifier, drafter = pair
  other, none = (
    'for the {} {}, with the fingerprint',
    'has none, as it is not',
  )
  for given, method, said in (
    (pair, 'learned', other.format('verifier', 'tiny-verifier')),
    ((drafter, drafter), own, other.format('verifier', 'large')),
    ((verifier, verifier), own, other.format('drafter', 'small')),
    ((verifier, 'self:1'), own, other.format('drafter', 'small')),
    ((verifier, 'ngram'), own, none),
    (small.tables(), own, none),
  ):
    make = functools.partial(small.sampler, *given, method=method)
    message = conftest.refused('method', make)
    assert message.startswith(f'method: {method} was trained for the')
    assert said in message
  # Where nothing is drafted there is no rule.
  small.sampler(drafter, gamma=0, method=own)


def test_a_sweep_of_another_pair_is_refused_before_it_decodes(tmp_path):
  curves = [curve_plan.Curve.from_config({}, 'learned', (0.3,))]
  with pytest.raises(ValueError, match='learned was trained for the verifier'):
    sweep.run(small.config(), curves, tmp_path / 'w')
  assert not list((tmp_path / 'w').glob('records/*'))


def test_points_are_named_after_the_head_and_not_only_its_name(tmp_path):
  folder = _folder(tmp_path)

  def point():
    config = small.config(tasks=('word_problems',))
    curve = curve_plan.Curve.from_config({}, f'learned:{folder}', (0.3,))
    curve_plan.check_curves([curve], {})
    tasks = plan.configured_tasks(config)
    examples = {'word_problems': [Example(id='0', prompt='p', reference='r')]}
    (found,) = plan.plan_points(config.to_dict(), [curve], tasks, examples, {})
    return found

  first = point()
  assert '/' not in first.name
  assert point() == first
  _folder(tmp_path, mq=-0.5)
  assert point().identity != first.identity


def test_a_page_calls_it_by_its_own_name():
  names = ['learned', 'learned:mine', 'other:mine']
  labels = [
    s.label for s in styles.styles({name: name for name in names}).values()
  ]
  assert labels == ['Learned', 'Learned mine', 'other:mine']


# --- What it learns from.

_TEXTS = {
  # Of each example: tokens, quality, and how often it was written.
  'a': [((5, 6), 1.0, 2), ((5, 7), 0.0, 1), ((5, 8), 0.5, 1)],
  'b': [((9,), 0.25, 1)],
  'c': [((9, 9), 0.0, 1)],
}


def _record(example, tokens, quality):
  usual = make_record(task='numerals', method='opt', id=example)
  record, trace = make_failure(usual, '')
  record = dataclasses.replace(
    record, failure=None, quality=quality, scores={'half': quality / 2}
  )
  n = len(tokens)
  return record, dataclasses.replace(
    trace,
    tokens=list(tokens),
    token_strings=[''] * n,
    sources=[0] * n,
    logprobs=[0.0] * n,
    rejected=[None] * n,
  )


def _workdir(path, **fields):
  """A sweep's folder with these texts."""
  asked = [Example(id=x, prompt=f'{x}?', reference='') for x in _TEXTS]
  records.write(path / 'examples/numerals.jsonl', asked)
  made = [
    _record(example, tokens, quality)
    for example, texts in _TEXTS.items()
    for tokens, quality, count in texts
    for _ in range(count)
  ]
  lines, traces = zip(*made, make_failure(made[0][0], 'why'), strict=True)
  records.write(path / 'records/point.jsonl', lines)
  records.write(path / 'traces/point.jsonl.gz', traces)
  config = dict(verifier='v', drafter='d', temperature=1.0, split='train')
  records.write_text(path / 'config.json', json.dumps(config | fields))
  return str(path)


def _config(**fields):
  config = train_rule.get_config()
  config.update(fields)
  return config


def test_texts_weigh_as_they_were_scored(tmp_path, monkeypatch):
  workdir = _workdir(tmp_path)
  found = rules.gather_texts(_config(), [workdir])
  weights = {text.tokens: text.weight for text in found}
  # Two of the first, and an example is as much as another.
  assert weights == {(5, 6): 0.8, (5, 8): 0.2, (9,): 1.0}
  assert {text.prompt for text in found} == {'a?', 'b?'}
  # A second workdir adds to it; a sharper score counts for more.
  twice = rules.gather_texts(_config(), [workdir, workdir])
  assert {text.tokens: text.weight for text in twice} == weights
  sharp = rules.gather_texts(_config(score='half', sharpness=2.0), [workdir])
  weights = {text.tokens: text.weight for text in sharp}
  assert weights[5, 8] == pytest.approx(1 / 9)
  assert len(rules.gather_texts(_config(texts=2), [workdir])) == 2
  with pytest.raises(ValueError, match="no score 'bleu'; choose from half"):
    rules.gather_texts(_config(score='bleu'), [workdir])
  # Nothing is learnt from what is wrong.
  monkeypatch.setitem(_TEXTS, 'a', [((5,), 0.0, 1)])
  monkeypatch.setitem(_TEXTS, 'b', [((), 1.0, 1)])
  with pytest.raises(ValueError, match=r'no answer in .* is right'):
    rules.gather_texts(_config(), [_workdir(tmp_path / 'wrong')])


def test_a_rule_learns_from_training_examples_of_one_pair(tmp_path):
  # What `experiments.train` tells the trainings apart by.
  assert 'workdirs' in _config()
  train = _workdir(tmp_path / 'train')
  assert rules.shared_settings([train]) == dict(
    verifier='v', drafter='d', temperature=1.0, gate='raw', dtype=None,
    chat=False, top_k=None, top_p=None,
  )  # fmt: skip
  for i, (fields, said) in enumerate(
    (
      (dict(split='test'), 'has test examples, on which no rule'),
      (dict(split=''), 'has test examples, on which no rule'),
      (dict(temperature=0.5), 'has the temperature 0.5, but earlier'),
      (dict(top_p=0.9), 'has the top_p 0.9, but earlier ones have None'),
      (dict(drafter='e'), "has the drafter 'e', but earlier ones have 'd'"),
    )
  ):
    other = _workdir(tmp_path / str(i), **fields)
    with pytest.raises(ValueError, match=said):
      rules.shared_settings([train, other])
  # Other worked examples make another prompt of the same example.
  asked = [Example(id=x, prompt=f'1+1=2 {x}?', reference='') for x in _TEXTS]
  records.write(tmp_path / '0/examples/numerals.jsonl', asked)
  with pytest.raises(ValueError, match='has another prompt of numerals a than'):
    rules.gather_texts(_config(), [train, str(tmp_path / '0')])
  with pytest.raises(ValueError, match='is missing or not a config; give'):
    rules.shared_settings([str(tmp_path / 'nowhere')])
  with pytest.raises(ValueError, match='workdirs: none is given; give'):
    rules.train_rule(_config(workdirs=''), tmp_path)


def test_what_is_read_is_what_models_and_rules_say():
  tables = small.tables()
  options = dict(method='speed', lenience=0.0, gamma=1, temperature=0.7)
  decoder = small.sampler(*tables, **options)
  texts = [
    rule_fitting.Text(('t', 'x'), 'The', (40, 50, 60), 0.25),
    rule_fitting.Text(('t', 'x'), 'The', (70,), 0.75),
    rule_fitting.Text(('t', 'y'), 'And so', (80, 90), 1.0),
  ]
  positions = rule_fitting.read(decoder, texts, 0.5)
  ids = [decoder.encode(text.prompt) for text in texts]
  looks = scoring.inspect_tokens(
    decoder, [(a, b.tokens) for a, b in zip(ids, texts, strict=True)]
  )
  looks = [look for found in looks for look in found]
  for name in 'q', 'p':
    want = [getattr(look, name) for look in looks]
    np.testing.assert_allclose(getattr(positions, name), want, rtol=1e-5)
  # 1/8 of all for each token that weighs a quarter.
  want = np.array([0.25, 0.25, 0.25, 0.75, 1.0, 1.0]) / 3.5
  np.testing.assert_allclose(positions.weight, want)
  assert positions.example.tolist() == [0, 0, 0, 0, 1, 1]
  assert positions.features.shape == (6, len(learned.FEATURES))
  # At their strict ends all rules are the verifier's law.
  at = rule_fitting.COMPARED['diff'].index(-0.5)
  strict = positions.rejected['diff'][:, at] > 0
  np.testing.assert_allclose(
    positions.laws['diff'][strict, at], positions.p[strict], rtol=1e-5
  )
  np.testing.assert_allclose(
    positions.rejected['diff'][strict, at], positions.tv[strict], atol=1e-5
  )
  every = positions.select(np.array([1, 0, 0, 1, 1, 1], bool))
  assert every.weight.sum() == pytest.approx(1)
  assert len(every.laws['opt']) == 4


# --- What it learns.

_LENIENCES = (0.0, 0.3, 0.6)


def _positions(count=6000, seed=0, truth=None):
  """Tokens of which the best head is known: that is what (J) is made of."""
  rng = np.random.default_rng(seed)
  features = rng.uniform(0, 1, (count, len(learned.FEATURES)))
  names = list(learned.FEATURES)
  features[:, names.index('one')] = 1
  truth = truth or {'mp': 0.5, 'mq': -0.8, 'tv': 0.6, 'agree': -0.4, 'one': 0.1}
  h = features @ [truth.get(name, 0.0) for name in names]
  q = np.full(count, 0.5)
  price = rng.uniform(0.05, 1, count)
  empty = {
    name: np.zeros((count, len(leniences)))
    for name, leniences in rule_fitting.COMPARED.items()
  }
  # What was drawn is only the mean of it.
  noise = rng.normal(0, 0.03, count)
  return h, rule_fitting.Positions(
    features=features,
    q=q,
    p=q + h + noise,
    tv=price,
    laws=empty,
    rejected=empty,
    weight=np.full(count, 1 / count),
    example=np.arange(count) // 10,
    held_out=np.arange(count) // 10 % 2 > 0,
  )


def test_the_best_head_is_found():
  h, positions = _positions()
  train, test = (
    positions.select(~positions.held_out),
    positions.select(positions.held_out),
  )
  weights = rule_fitting.fit(train, _LENIENCES, 0.01, 1e-6)
  assert list(weights) == list(learned.FEATURES)
  row = np.array(list(weights.values()))
  for lam in _LENIENCES:
    best = h > lam * positions.tv
    assert 0.1 < best.mean() < 0.9
    ours = positions.features @ row > lam * positions.tv
    assert (ours == best).mean() > 0.98

  def objective(weights):
    made = rule_fitting.compare(test, weights, _LENIENCES)[learned.NAME]
    return np.mean(
      [
        test.weight @ made.at(lam)[:, i]
        for i, lam in enumerate(_LENIENCES)
      ]
    )  # fmt: skip

  best = np.where(
    h[positions.held_out, None] > np.array(_LENIENCES) * test.tv[:, None],
    np.array(_LENIENCES) * test.tv[:, None] - (test.p - test.q)[:, None],
    0,
  )
  least = np.mean(1 - test.q) + best.mean()
  assert objective(weights) - least < 0.02 * (objective(learned.OPT) - least)
  # The same of the same.
  assert rule_fitting.fit(train, _LENIENCES, 0.01, 1e-6) == weights


def test_a_strong_ridge_leaves_opt_and_a_constant_feature_has_no_say():
  _, positions = _positions()
  weights = rule_fitting.fit(positions, _LENIENCES, 0.05, 1e6)
  for name, weight in weights.items():
    assert weight == pytest.approx(learned.OPT.get(name, 0.0), abs=1e-3)
  features = positions.features.copy()
  features[:, list(learned.FEATURES).index('agree')] = 1
  changed = dataclasses.replace(positions, features=features)
  assert rule_fitting.fit(changed, _LENIENCES, 0.05, 1e-4)['agree'] == 0


def test_rules_are_judged_on_what_is_held_out():
  _, positions = _positions()
  weights = rule_fitting.fit(
    positions.select(~positions.held_out), _LENIENCES, 0.01, 1e-6
  )
  found = rules.compare_rules(positions, weights, _LENIENCES)
  assert found['examples'] == 300
  assert found['tokens'] == 3000
  mean = found['mean']
  assert mean['learned'] < min(mean['never defer'], mean['always defer'])
  test = positions.select(positions.held_out)
  never = test.weight @ (1 - test.q)
  np.testing.assert_allclose(found['objective']['never defer'], never)
  price = test.weight @ test.tv
  always = [test.weight @ (1 - test.p) + lam * price for lam in _LENIENCES]
  np.testing.assert_allclose(found['objective']['always defer'], always)
  less, low, high = found['gained']['never defer']
  assert less == pytest.approx(never - mean['learned'])
  assert 0 < low < less < high


# --- All of it.


@pytest.mark.slow
def test_a_rule_is_trained_on_what_a_sweep_wrote(tmp_path):
  pair = dict(zip(('verifier', 'drafter'), small.pair(), strict=True))
  config = small.config(split='train', num_examples=24)
  curves = [
    curve_plan.Curve.from_config(config.to_dict(), 'verifier_only', ()),
    curve_plan.Curve.from_config(config.to_dict(), 'opt', (0.1, 0.5)),
  ]
  sweep.run(config, curves, tmp_path / 'w', quiet=True)
  # No answer of theirs is right, but some have a letter in common with it.
  training = _config(workdirs=str(tmp_path / 'w'), name='mine', score='chrf')
  folder, figures, of = rules.train_rule(training, tmp_path / 'runs')
  rules.write_card(folder, training, figures, of, 'the command')
  card = (folder / 'README.md').read_text()
  assert "method='learned:mine'" in card
  assert not re.search('{|}', card)
  assert '| `token_v3` |' in card
  assert json.loads((folder / 'figures.json').read_text()) == figures
  assert 0 < figures['mean']['learned'] < 1
  # What it learns from is never judged by.
  assert 0 < figures['examples'] < 24
  # Again, and the same comes out.
  again, _, _ = rules.train_rule(training, tmp_path / 'again')
  assert (again / learned.FILE).read_bytes() == (
    (folder / learned.FILE).read_bytes()
  )
  pair |= dict(method=f'learned:{folder}')
  decoder = small.sampler(**pair, lenience=0.2)
  answer = decoder.sample('The number 4302 in words:', max_new_tokens=16)
  assert answer.counts['examined'] > 0
  with pytest.raises(ValueError, match=r'for the drafter .*drafter, with'):
    small.sampler(**pair | dict(drafter=pair['verifier']))
