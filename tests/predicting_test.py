"""Predictions from given texts: exact by enumeration, and beside decoding."""

import functools
import itertools
import json

import cases
import jax
import numpy as np
import prediction_references
import pytest
import small
import tiers

import cascades
from cascades import decoding, methods, verification
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.proof import enumeration, table_models
from cascades.sampler import predicting
from experiments.tasks import TASKS

_MODEL = table_models.TableModel.injective(3, 3)
_PROMPT, _LENGTH, _GAMMAS = (1, 2), 3, (1, 2, 3)
_TEXTS = tuple(itertools.product(range(3), repeat=_LENGTH))
_PAIRS = dict(speed=(0.0, 0.4), opt=(0.1,), token_v3=(0.3,), cactus=(0.3,))
_PAIRS |= dict(typical=(0.3,), min_p=(0.5,))


@functools.cache
def _tables():
  keys = [jax.random.key(i) for i in range(2)]
  verifier, drafter = table_models.random_tables(_MODEL, keys)
  return verifier, drafter + 0.5 * verifier


def _expected(kind, sampling, gamma):
  """Chances of texts, mean calls, drafts accepted and examined, of `_PAIRS`."""
  verifier, drafter = _tables()
  d = table_models.table_distributions(verifier, drafter, sampling)
  pairs = [(methods.METHODS[x], y) for x, ys in _PAIRS.items() for y in ys]
  table = table_models.Table.from_methods(pairs, d)
  config = verification.VerificationConfig(kind)
  pending = {(): np.array([np.ones(len(pairs)), *[np.zeros(len(pairs))] * 3])}
  texts = dict.fromkeys(_TEXTS, 0.0)
  while pending:
    emitted = min(pending, key=len)
    before = pending.pop(emitted)
    if len(emitted) == _LENGTH:
      texts[emitted] = before
      continue
    prefix = [*_PROMPT, *emitted]
    for block, prob in enumeration.blocks(table, config, _MODEL, prefix, gamma):
      text = (*emitted, *block)[:_LENGTH]
      accepted = min(len(block) - 1, _LENGTH - len(emitted))
      examined = min(len(block), gamma, _LENGTH - len(emitted))
      counts = np.array([[0], [1], [accepted], [examined]])
      after = (before + counts * before[0]) * prob
      pending[text] = pending.get(text, 0) + after
  return pairs, texts


_KINDS = 'token', 'block'


@pytest.mark.parametrize(
  ('temperature', 'draft', 'least'),
  [(1.0, 'sample', 420), (1.0, 'argmax', 200), (0.0, 'sample', 21)],
)
@pytest.mark.parametrize('kind', _KINDS)
def test_calls_of_a_rules_own_text_are_exact(kind, temperature, draft, least):
  pair = [checkpoints.Checkpoint(_MODEL, x, None) for x in _tables()]
  options = dict(verification=kind, temperature=temperature, draft=draft)
  config = DecodingConfig(**options)
  sampling = small.sampler(*pair, **options).sampling_params()
  expected = {x: _expected(kind, sampling, x) for x in _GAMMAS}
  options, compared = dict(rules=_PAIRS, gammas=_GAMMAS, config=config), 0
  rules = [(x, y) for x, ys in _PAIRS.items() for y in ys]
  for tokens in _TEXTS:
    text = [(_PROMPT, tokens)]
    own = dict.fromkeys(rules, text)
    prediction = cascades.predict(*pair, text, own_texts=own, **options)
    points = {(x.method, x.lenience, x.gamma): x for x in prediction.points}
    for gamma, (pairs, texts) in expected.items():
      for (method, lenience), row in zip(pairs, texts[tokens].T, strict=True):
        chance, calls, accepted, examined = row
        if chance < 1e-6:
          continue
        point = points[method.name, lenience, gamma]
        got = _LENGTH / point.tokens_per_call, point.acceptance_rate
        want = calls / chance, accepted / examined
        np.testing.assert_allclose(got, want, atol=2e-5)
        compared += 1
  assert compared >= least


_PROMPTS = [f'The number {x} in words:' for x in range(100, 124)]


def _decoded(temperature, pair=None, **options):
  pair = pair or small.tables()
  sampler = small.sampler(*pair, temperature=temperature, **options)
  answers = sampler.sample(_PROMPTS, max_new_tokens=24, seed=1)
  contexts = [sampler.encode(prompt) for prompt in _PROMPTS]
  texts = [(x, y.tokens) for x, y in zip(contexts, answers, strict=True)]
  return answers, texts


@pytest.mark.parametrize(
  ('verifier', 'drafter'),
  tiers.first(
    [
      *((None, None), ('tiny-verifier', 'tiny-recurrent')),
      *(('tiny-verifier', 'ngram:1'), ('hf_gemma3', 'eagle3_joined')),
      ('hf_gemma4_dense', 'hf_gemma4_dense_assistant'),
    ]
  ),
)
def test_greedy_strict_decoding_is_predicted_exactly(verifier, drafter):
  pair = small.tables()
  if verifier:
    pair = cascades.load_model(cases.named(verifier)), cases.named(drafter)
  _, texts = _decoded(0.0, pair, gamma=0)
  answers, _ = _decoded(0.0, pair, lenience=-1.0)
  options = dict(config=DecodingConfig(temperature=0.0), rules={}, gammas=[4])
  for answer, text in zip(answers, texts, strict=True):
    prediction = cascades.predict(*pair, [text], **options)
    (point,) = prediction.points
    rate = pytest.approx(answer.block_efficiency, 1e-12)
    assert point.tokens_per_call == rate
    accepted = point.acceptance_rate * answer.counts['examined']
    assert accepted == pytest.approx(answer.counts['accepted'], 1e-12)
    assert prediction.notes == []


def test_sampled_strict_decoding_is_within_its_interval():
  _, texts = _decoded(1.0, gamma=0)
  points = cascades.predict(*small.tables(), texts, rules={}).points
  answers, _ = _decoded(1.0, lenience=-1.0)
  calls = sum(x.counts['verifier_calls'] for x in answers)
  point = points[3]
  assert (point.gamma, point.basis) == (4, 'exact')
  half = (point.high - point.low) / 2
  tokens = sum(len(x.tokens) for x in answers) / calls
  assert abs(tokens - point.tokens_per_call) < 2 * half
  # A model accepts all of its own drafts.
  own = cascades.predict(small.tables()[0], small.tables()[0], texts, rules={})
  assert all(x == pytest.approx(1, abs=1e-5) for x in own.points[3].acceptance)


_DRAFTERS = 'recurrent', 'ngram', 'eagle', 'partial recurrent'
_OF_BLOCKS = itertools.product(_DRAFTERS, _KINDS)


@pytest.mark.parametrize(('name', 'kind'), tiers.first(_OF_BLOCKS))
def test_drafters_whose_q_depends_on_where_a_block_begins(name, kind):
  table = checkpoints.Checkpoint(cases.MODEL, cases.VERIFIER, None)
  bound = cases.drafter(name).bound
  prompts = 20 * list(itertools.product(range(cases.SIZE), repeat=2))
  options = dict(config=verification.VerificationConfig(kind), bound=bound)
  options |= dict(prompts=prompts, new=cases.ROOM)
  state = cases.generate('min_p', (0.0, 0.5), **options)
  texts, by_rule = (
    [(x, cases.new_tokens(state, j, i)) for j, x in enumerate(prompts)]
    for i in range(2)
  )
  config = DecodingConfig(verification=kind, temperature=1.0)
  options = dict(gammas=[3], config=config)
  predict = functools.partial(cascades.predict, table, bound, texts, **options)
  own = {('min_p', 0.5): by_rule}
  points = predict(rules={'min_p': (0.5,)}, own_texts=own).points
  assert [x.basis for x in points] == ['exact', 'own text']
  with pytest.raises(ValueError, match='is not a language model'):
    predict(rules={'chow': (0.3,)})
  counts = jax.tree.map(lambda x: x.sum(0), decoding.count(state))
  rate = np.array([x.acceptance_rate for x in points])
  calls = counts.drafter_calls / counts.blocks
  np.testing.assert_array_equal(calls, [x.drafter_calls for x in points])
  # In a text of known tokens it is certain which n-grams are kept.
  spread = np.sqrt(counts.examined * rate * (1 - rate))
  limit = 1e-6 if name == 'ngram' else 4 * spread
  assert (abs(counts.accepted - rate * counts.examined) < limit).all()
  tokens_per_call = np.array([x.tokens_per_call for x in points])
  blocks = len(prompts) * cases.ROOM / tokens_per_call
  assert (abs(counts.blocks - blocks) < limit).all()


def test_a_large_vocabulary_is_read_in_part(monkeypatch):
  _, texts = _decoded(1.0, gamma=0)
  options = dict(rules={'token_v3': (0.5,), 'opt': (0.3,)}, gammas=[4])
  whole = cascades.predict(*small.tables(), texts, **options)
  assert whole.rest == 0
  monkeypatch.setattr(predicting, '_LIKELIEST', 300)
  reading = predicting._reading
  monkeypatch.setattr(predicting, '_reading', lambda *args: reading(*args))
  part = cascades.predict(*small.tables(), texts, **options)
  assert 0 < part.rest < 0.3
  for x, y in zip(whole.points, part.points, strict=True):
    assert abs(x.acceptance_rate - y.acceptance_rate) <= part.rest
    assert abs(x.total_variation - y.total_variation) <= part.rest
  strict, strict_of_part = (x.points[0].acceptance_rate for x in (whole, part))
  assert strict == pytest.approx(strict_of_part, abs=1e-6)


def test_texts_of_others_are_noticed():
  _, texts = _decoded(1.0, gamma=0)
  assert cascades.predict(*small.tables(), texts, rules={}).notes == []
  texts = [(context, tokens[::-1]) for context, tokens in texts]
  for temperature in 1.0, 0.0:
    options = dict(config=DecodingConfig(temperature=temperature), rules={})
    (note,) = cascades.predict(*small.tables(), texts, **options).notes
    assert note.startswith("texts: are not the verifier's own answers")


@pytest.mark.parametrize(
  ('tokens', 'options', 'sentence'),
  [
    *((tokens, {}, 'texts: hold no token') for tokens in (None, ())),
    ((3, 900), {}, 'ids from 0 to 767'),
    ((3,), dict(cache_length=12), 'gamma: a text of 3 tokens'),
    ((3,), dict(bonus='verifier'), 'bonus: '),
    ((3,), dict(verification='look_ahead'), 'not predicted'),
    (
      (3,),
      dict(verification='match', drafts=2),
      'with 2 drafts is not predicted',
    ),
  ],
)
def test_what_cannot_be_predicted_is_refused(tokens, options, sentence):
  texts = [] if tokens is None else [(_PROMPT, tokens)]
  config = DecodingConfig(**options)
  with pytest.raises(ValueError, match=sentence):
    cascades.predict(*small.tables(), texts, config=config)


def _holds(row):
  """A point within 3 % and .02 of what was decoded, beyond both intervals."""
  half = (row['high'] - row['low']) / 2 + row['decoded_half']
  error = abs(row['tokens_per_call'] - row['decoded'])
  rate_error = abs(row['acceptance_rate'] - row['rate'])
  is_near = error <= 0.03 * row['decoded'] + half
  return is_near and rate_error <= 0.02 + half / row['decoded']


@pytest.mark.parametrize('name', ['tiny', '270m'])
def test_decoded_answers_are_as_they_were_predicted(name):
  path = small.FIXTURES / f'predictions_{name}.json'
  rows = [*map(json.loads, path.read_text().splitlines())]
  points = [x for x in rows if 'decoded' in x]
  assert len(points) == {'tiny': 5 * 11 * 4, '270m': 8}[name]
  assert all(map(_holds, points))
  assert all(x['coverage'] >= 0.9 for x in rows if 'coverage' in x)


@pytest.mark.slow
def test_a_point_is_decoded_as_it_is_predicted():
  pair = [cascades.load_model(f'tiny-{x}') for x in ('verifier', 'drafter')]
  examples, _ = TASKS['word_problems'].read(num_examples=128)
  rows = prediction_references.compare(
    pair,
    [x.prompt for x in examples],
    rules={'opt': (0.3,)},
    temperatures=(1.0,),
    gammas=(4,),
    request=dict(max_new_tokens=32),
    count=100,
    rows=64,
  )
  assert [_holds(row) for row in rows] == [True]
