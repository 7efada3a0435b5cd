"""Scores of given texts, of all that there are, and what decided on drafts."""

import functools
import itertools
from unittest import mock

import cases
import jax
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import methods
from cascades.decoding.faults import FaultError
from cascades.models import checkpoints
from cascades.proof import enumeration, table_models
from cascades.sampler import scoring
from cascades.verification_config import BONUS, DRAFT, RESIDUAL

_PROMPT = (1, 2)
# A row for each text of three tokens.
_MODEL = table_models.TableModel.injective(4, 3)
_STOPS = dict(stop_below=0.5)
_EVERY = list(itertools.product(range(4), repeat=2))


@functools.cache
def _pair():
  keys = [jax.random.key(i) for i in range(2)]
  tables = table_models.random_tables(_MODEL, keys)
  return tuple(checkpoints.Checkpoint(_MODEL, x, None) for x in tables)


def _scores(decoder, texts=_EVERY):
  return scoring.score(decoder, [(_PROMPT, text) for text in texts])


def _laws(decoder):
  """Returns the probability of each pair of tokens, [4, 4]."""
  return np.exp([score.logprob for score in _scores(decoder)]).reshape(4, 4)


@pytest.mark.parametrize(
  ('gate', 'draft', 'names'),
  [
    (*x, ('opt', 'token_v1', 'speed', 'cactus', 'ensemble', 'min_p'))
    for x in (('raw', 'sample'), ('raw', 'argmax'))
  ]
  + [('processed', 'sample', ('opt', 'token_v1'))],
)
def test_every_text_has_the_probability_of_its_law(gate, draft, names):
  pairs = [(methods.METHODS[name], 0.3) for name in names]
  verifier, drafter = _pair()
  options = dict(temperature=0.7, top_p=0.9, draft=draft)
  sampling = small.sampler(verifier, drafter, **options).sampling_params()
  given = verifier.params, drafter.params, sampling, gate
  d = table_models.table_distributions(*given)
  table = table_models.Table.from_methods(pairs, d)
  declared = enumeration.declared_law(table, _MODEL, _PROMPT, 2)
  # One compilation for them all.
  method = cases.from_functions(pairs)
  for i, law in enumerate(declared):
    decoder = small.sampler(
      *_pair(), method=method, lenience=i, gate=gate, **options
    )
    scored = _laws(decoder)
    np.testing.assert_allclose(scored, law, atol=1e-6)
    assert scored.sum() == pytest.approx(1, abs=1e-5)


def test_the_likeliest_text_of_each_place_is_the_greedy_one():
  decoder = small.sampler(*_pair(), method='ensemble', lenience=0.5)
  law = _laws(decoder)
  first = law.sum(1).argmax()
  best = first, law[first].argmax()
  for text, score in zip(_EVERY, _scores(decoder), strict=True):
    assert score.is_greedy == (text == best)


def test_at_its_ends_a_method_scores_as_one_model_alone():
  verifier, drafter = _pair()
  alone = _laws(small.sampler(verifier, gamma=0))
  assert np.abs(alone - _laws(small.sampler(drafter, gamma=0))).max() > 0.05
  # By name, and (stricter than strict) by what the law says.
  for lenience in (-1, -2):
    strict = small.sampler(*_pair(), method='chow', lenience=lenience)
    np.testing.assert_allclose(_laws(strict), alone, atol=1e-6)
  # Nothing need be known of what drafts where the law does not look at it.
  for method, lenience in (('verifier_only', 0), ('speed', 0), ('min_p', 0)):
    ngram = small.sampler(verifier, 'ngram', method=method, lenience=lenience)
    np.testing.assert_allclose(_laws(ngram), alone, atol=1e-6)
  drafted = small.sampler(*_pair(), method='drafter_only')
  want = _laws(small.sampler(drafter, gamma=0))
  np.testing.assert_allclose(_laws(drafted), want, atol=1e-6)


def test_how_blocks_are_verified_changes_no_score():
  options = dict(method='chow', lenience=0.4)
  want = _laws(small.sampler(*_pair(), **options))
  k_seq = dict(verification='k_seq', drafts=3)
  for changes in dict(gamma=1), dict(verification='block'), k_seq, _STOPS:
    decoder = small.sampler(*_pair(), **options | changes)
    np.testing.assert_array_equal(_laws(decoder), want)


@pytest.mark.parametrize('dtype', tiers.first([None, 'int8', 'float32']))
def test_scores_do_not_depend_on_what_is_scored_beside_them(dtype, monkeypatch):
  # Of two models the shallow one, whose window has 48 tokens.
  model = dtype and cascades.load_model('tiny-drafter', dtype)
  pair = (model, model) if model else _pair()
  decoder = small.sampler(*pair, lenience=0.3, batch_size=4)
  read, rng = mock.Mock(wraps=scoring._read), np.random.default_rng(0)
  monkeypatch.setattr(scoring, '_read', read)
  sizes = [(0, 5), (1, 1), (3, 8), (3, 9), (60, 4), (70, 2), (2, 0), (9, 60)]
  for begin in (0, 70):
    first, *texts = rng.integers(4, size=(9, 70)).tolist()
    requests = [
      (first[:begin] + text[:n], text[-m:][:m])
      for text, (n, m) in zip(texts, sizes, strict=True)
    ][not begin :]
    together = scoring.score(decoder, requests)
    assert {x.args[2].shape[1] for x in read.mock_calls[-2:]} == {32, 96}
    assert together[-2] == (0, True)
    alone = [scoring.score(decoder, [request])[0] for request in requests]
    for others in alone, scoring.score(decoder, requests[::-1])[::-1]:
      # To the last bit, but for sums of floats.
      atol = 1e-4 * (dtype == 'float32')
      np.testing.assert_allclose(together, others, rtol=0, atol=atol)


def test_a_fault_is_at_its_position_of_the_text():
  verifier, drafter = _pair()
  broken = verifier._replace(params=np.nan * verifier.params)
  requests = [([1] * 70 + [2] * i, [3]) for i in range(1, 4)]
  with pytest.raises(FaultError, match='at position 71 of a context of 71 and'):
    scoring.score(small.sampler(broken, drafter), requests)


def test_lengths_and_leniences_of_a_size_are_compiled_once():
  def run(lengths, lenience):
    # No other test has compiled this method.
    options = dict(method='diff', lenience=lenience, batch_size=2)
    decoder = small.sampler(*_pair(), **options)
    scoring.score(decoder, [([1] * n, [2] * (n % 8)) for n in lengths])

  run((5, 6, 7), 0.1)
  before = scoring._read._cache_size(), scoring._map_positions._cache_size()
  run((7, 9, 20, 22, 11, 25, 17, 3), 0.2)
  assert scoring._read._cache_size() == before[0]
  run((32, 33), 0.7)
  assert scoring._read._cache_size() == before[0] + 1
  assert scoring._map_positions._cache_size() == before[1]


@pytest.mark.parametrize(
  ('drafter', 'options', 'said'),
  [
    (1, dict(temperature=0), 'temperature: must be above 0'),
    (1, dict(temperature=1e-7), 'temperature: must be above 0'),
    (1, dict(bonus='verifier'), 'verification: .*the law depends on'),
    (1, dict(verification='look_ahead'), 'verification: .*the law depends on'),
    ('ngram', {}, 'drafter: NgramDrafter is not a language'),
    (1, dict(cache_length=3), 'request 0: its 4 tokens, .* and fit into cache'),
  ],
)
def test_what_has_no_score_is_refused(drafter, options, said):
  verifier, model = _pair()
  drafter = model if drafter == 1 else drafter
  decoder = small.sampler(verifier, drafter, lenience=0.3, **options)
  with pytest.raises(ValueError, match=f'^{said}'):
    _scores(decoder)


_WITHOUT_TESTS = tiers.first([('block', 1), ('match', 1), ('traversal', 2)])
_PROMPTS = [f'The number {n} in words:' for n in range(4302, 4314)]


def _distributions(method, d, lenience, token):
  del method, lenience, token
  return d.q, d.p, d.p_gate


def _explaining(**options):
  return small.sampler(*small.tables(), batch_size=4, **options)


def _explained(decoder):
  """Yields a prompt's ids, its answer and the explanation, token by token."""
  answers = decoder.sample(_PROMPTS, max_new_tokens=32, seed=3)
  for prompt, answer in zip(_PROMPTS, answers, strict=True):
    yield prompt, answer, scoring.explain(decoder, prompt, answer)


def test_probabilities_and_residual_equal_those_computed_in_numpy():
  lenience, sources = 0.5, []
  decoder = _explaining(lenience=lenience)
  for prompt, answer, explained in _explained(decoder):
    assert [(x.token, x.source, x.draft) for x in explained] == [
      *zip(answer.tokens, answer.sources, answer.drafts, strict=True)
    ]
    assert [x.uniform for x in explained] == answer.accept_uniforms
    sources += answer.sources
    request = decoder.encode(prompt), answer.tokens
    qs, ps, gates = scoring.map_tokens(
      decoder, [request], _distributions, scoring.explained_target(decoder)
    )
    for x, q, p, gate in zip(explained, qs, ps, gates, strict=True):
      assert (x.draft is None) == (x.q is None) == (x.source == BONUS)
      if x.draft is None:
        assert x.uniform is x.acceptance is None
        continue
      assert (x.uniform < x.acceptance) == (x.source == DRAFT)
      assert bool(x.residual) == (x.source == RESIDUAL)
      defers = gate < (1 - lenience) * gate.max()
      pi = q * ~defers + q[defers].sum() * p
      want = q[x.draft], p[x.draft], pi[x.draft]
      np.testing.assert_allclose((x.q, x.p, x.pi), want, rtol=1e-4)
      a = min(1, pi[x.draft] / q[x.draft])
      assert x.acceptance == pytest.approx(a, rel=1e-4)
      assert x.deferred == defers[x.draft]
      if x.source == RESIDUAL:
        residual = np.maximum(0, pi - q) / np.maximum(0, pi - q).sum()
        want = np.sort(residual)[:-6:-1]
        ids, probs = zip(*x.residual, strict=True)
        np.testing.assert_allclose(probs, want[want > 0], atol=1e-5)
        np.testing.assert_allclose(residual[list(ids)], probs, atol=1e-5)
        assert residual[x.token] > 0
  assert sources.count(DRAFT) > 30
  assert sources.count(RESIDUAL) > 10


@pytest.mark.parametrize(('kind', 'drafts'), _WITHOUT_TESTS)
def test_without_a_test_per_token_no_number_is_given(kind, drafts):
  options = dict(verification=kind, drafts=drafts)
  decoder, rejected = _explaining(lenience=0.1, **options), 0
  for _, answer, explained in _explained(decoder):
    assert answer.drafts == [x.draft for x in explained]
    for x in explained:
      assert x.uniform is x.acceptance is None
      assert not x.residual
      has_draft = x.source == DRAFT or (x.source == RESIDUAL and drafts == 1)
      assert (x.draft is not None) == has_draft == (x.pi is not None)
      rejected += has_draft and x.source == RESIDUAL
  assert bool(rejected) == (drafts == 1)


def test_lossless_drafts_of_no_language_model_are_explained_without_q():
  prompt = 'a b c d ' * 12
  decoder = small.sampler(small.tables()[0], 'ngram:1', gamma=2)
  answers = decoder.sample([prompt] * 4, max_new_tokens=24)
  explained = [y for x in answers for y in scoring.explain(decoder, prompt, x)]
  assert sum(x.draft is not None for x in explained) > 0
  for x in explained:
    assert x.q is x.acceptance is None
    assert x.pi == x.p
    if x.draft is not None:
      # The q of an n-gram is one-hot.
      assert (x.uniform < x.p) == (x.source == DRAFT)


def test_an_answer_of_another_prompt_or_sampler_is_refused():
  decoder, refused = _explaining(lenience=0.5), []
  answers = decoder.sample(_PROMPTS, max_new_tokens=32, seed=3)
  for answer in answers:
    try:
      scoring.explain(decoder, 'Roses are red,', answer)
    except ValueError as error:
      refused.append(str(error))
  # Drafts of the others would have been decided alike.
  assert len(refused) >= len(_PROMPTS) // 2
  assert all(x.startswith('answer: was not made by this') for x in refused)
  # One decision that rounding flips is no other sampler.
  answer = answers[0]
  answer.accept_uniforms[answer.sources.index(DRAFT)] = 1.5
  assert scoring.explain(decoder, _PROMPTS[0], answer)
  answer.accept_uniforms[:] = [1.5] * len(answer.tokens)
  with pytest.raises(ValueError, match='was not made by this sampler'):
    scoring.explain(decoder, _PROMPTS[0], answer)
