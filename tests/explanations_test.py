"""Why drafts were rejected: what the loop records, and what decided."""

import numpy as np
import pytest
import small

import cascades
from cascades.sampler import scoring
from cascades.verification_config import BONUS, DRAFT, RESIDUAL

_PROMPTS = [f'The number {n} in words:' for n in range(4302, 4326)]


def _distributions(method, d, lenience, token):
  del method, lenience, token
  return d.q, d.p, d.p_gate


def _sampler(**options):
  config = cascades.DecodingConfig(temperature=1.7, **options)
  return cascades.Sampler('tiny-verifier', 'tiny-drafter', config=config)


def _explained(decoder):
  """Yields a prompt's ids, its answer and the explanation, token by token."""
  answers = decoder.sample(_PROMPTS, max_new_tokens=32, seed=3)
  for prompt, answer in zip(_PROMPTS, answers, strict=True):
    yield prompt, answer, scoring.explain(decoder, prompt, answer)


def test_probabilities_and_residual_equal_those_computed_in_numpy():
  lenience, sources = 0.5, []
  decoder = _sampler(method='token_v3', lenience=lenience)
  for prompt, answer, explained in _explained(decoder):
    assert [(x.token, x.source, x.draft) for x in explained] == [
      *zip(answer.tokens, answer.sources, answer.drafts, strict=True)
    ]
    assert [x.uniform for x in explained] == answer.accept_uniforms
    sources += answer.sources
    request = decoder.encode(prompt), answer.tokens
    ((qs, ps, gates),) = scoring.map_tokens(
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


@pytest.mark.parametrize(
  'options',
  [
    dict(verification='block'),
    dict(verification='match'),
    dict(verification='traversal', drafts=2),
  ],
  ids=lambda x: x['verification'],
)
def test_without_a_test_per_token_no_number_is_given(options):
  options = dict(method='token_v3', lenience=0.1, temperature=1.0) | options
  decoder, rejected = small.sampler(*small.tables(), **options), 0
  for _, answer, explained in _explained(decoder):
    assert answer.drafts == [x.draft for x in explained]
    for x in explained:
      assert x.uniform is x.acceptance is None
      assert not x.residual
      has_draft = x.source == DRAFT or (
        x.source == RESIDUAL and decoder.config.drafts == 1
      )
      assert (x.draft is not None) == has_draft == (x.pi is not None)
      rejected += has_draft and x.source == RESIDUAL
  assert bool(rejected) == (decoder.config.drafts == 1)


def test_lossless_drafts_of_no_language_model_are_explained_without_q():
  prompt = 'a b c d ' * 12
  decoder = cascades.Sampler('tiny-verifier', 'ngram:1')
  answer = decoder.sample(prompt, max_new_tokens=24)
  explained = scoring.explain(decoder, prompt, answer)
  assert sum(x.draft is not None for x in explained) > 0
  for x in explained:
    assert x.q is x.acceptance is None
    assert x.pi == x.p
    if x.draft is not None:
      # The q of an n-gram is one-hot.
      assert (x.uniform < x.p) == (x.source == DRAFT)


def test_an_answer_of_another_prompt_or_sampler_is_refused():
  decoder, refused = _sampler(method='token_v3', lenience=0.5), []
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
