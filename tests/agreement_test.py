"""Agreement: one pass of the verifier says what two greedy answers would."""

import dataclasses
import functools

import launching
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import drafters, load_model
from cascades.models import tokenizers
from cascades.models.chat import Conversation
from cascades.sampler import agreement, sampler
from experiments import tasks
from experiments.training import tokenizer_training

_NEW = 24
pytestmark = pytest.mark.usefixtures('few_shapes')


@functools.cache
def _models():
  return load_model('tiny-verifier'), load_model('tiny-drafter')


@functools.cache
def _prompts():
  problems = tasks.TASKS['word_problems'].load(split='test', num_examples=13)
  numbers = tasks.TASKS['numerals'].load(split='test', num_examples=4)
  return [example.prompt for example in [*problems, *numbers]]


def _of_tables():
  return small.tables(apart=0.2)


def _alone(model):
  alone = small.sampler(model, gamma=0, temperature=0.0)
  return alone.sample(_prompts(), max_new_tokens=_NEW)


@pytest.mark.parametrize('pair', tiers.first([_of_tables, _models]))
def test_it_is_the_common_beginning_of_two_greedy_answers(pair):
  verifier, drafter = pair()
  found = cascades.agreement((verifier, drafter), _prompts(), _NEW)
  answers = zip(_alone(verifier), _alone(drafter), strict=True)
  differ = ended = 0
  for one, (wanted, drafted) in zip(found, answers, strict=True):
    assert [place.drafter_token for place in one.tokens] == drafted.tokens
    common = 0
    for a, b in zip(wanted.tokens, drafted.tokens, strict=False):
      if a != b:
        break
      common += 1
    assert one.matched_length == common
    assert one.is_full_match == (
      drafted.tokens == wanted.tokens[: len(drafted.tokens)]
    )
    assert one.ended == (drafted.tokens[-1] == tokenizers.EOS)
    ended += one.ended
    if one.first_mismatch is not None:
      differ += 1
      place = one.first_mismatch
      assert place.verifier_token == wanted.tokens[common]
      assert place.p_verifier_token > place.p_drafter_token
      assert place.q_drafter_token > place.q_verifier_token
  # Both kinds are among them: some that end early, some that differ.
  assert 3 < differ < len(found)
  assert ended > 3


@pytest.mark.slow
def test_a_model_agrees_with_itself_to_the_end():
  verifier, _ = _models()
  one = agreement.agreement((verifier, verifier), _prompts()[-1], 64)
  assert one.is_full_match
  assert one.ended
  assert one.match_rate == 1
  assert one.first_mismatch is None
  assert ''.join(one.token_strings).strip()
  # Cut before its end, it has none.
  cut = agreement.agreement((verifier, verifier), _prompts()[-1], 2)
  assert not cut.ended
  assert cut.tokens == one.tokens[:2]
  # The best draft of a beam is looked at.
  beam = drafters.parse('tiny-recurrent', beam=True)
  assert agreement.agreement((verifier, beam), _prompts()[-1], 4).tokens


def test_whatever_drafts_can_be_looked_at():
  # Some models that agree, and the text itself, which has nothing to say here.
  verifier, drafter = _of_tables()
  bound_drafter = drafters.bind_drafter(verifier, drafter, stop_below=0.2)
  whole, part = (
    agreement.agreement((verifier, x), _prompts()[:3], 8)
    for x in (drafter, bound_drafter)
  )
  for one, other in zip(whole, part, strict=True):
    count = len(other.tokens)
    assert other.tokens == one.tokens[:count]
    sure = [place.q_drafter_token >= 0.2 for place in one.tokens]
    assert count == [*sure, False].index(False)
  silent = agreement.agreement((verifier, 'ngram'), 'one two', 8)
  assert not silent.tokens
  assert np.isnan(silent.match_rate)


@pytest.mark.slow
@pytest.mark.parametrize('drafter', ['tiny-recurrent', 'self:3', 'ngram:1'])
def test_a_drafters_first_block_is_what_strict_decoding_drafts(drafter):
  verifier, _ = _models()
  options = dict(method='speed', lenience=0.0, gamma=4, temperature=0.0)
  strict = small.sampler(verifier, drafter, **options)
  for prompt in _prompts()[-3:]:
    one = agreement.agreement((verifier, drafter), prompt, 4)
    # A block, and no more.
    answer = strict.sample(prompt, max_new_tokens=one.matched_length + 1)
    assert answer.counts['verifier_calls'] == 1
    assert answer.counts['accepted'] == one.matched_length


@pytest.mark.slow
def test_the_command_prints_the_first_difference():
  flags = f'--prompt={_prompts()[0]}', '--max_new_tokens=24', '--dtype=bfloat16'
  run = launching.run('experiments.agreement', *flags)
  assert run.returncode == 0
  assert '24 tokens agree' in run.stdout
  assert 'Greedy speculative decoding with gamma 4' in run.stdout
  assert run.stderr.splitlines() == [
    *('loading tiny-verifier', 'loading tiny-drafter'),
    'compiling, then comparing the two models',
    'compiling, then decoding',
  ]


def test_pairs_that_will_not_do_are_refused():
  words = tokenizer_training.train(['the quick brown fox ' * 20] * 3, 280)
  verifier, drafter = tables = _of_tables()
  others = [model._replace(tokenizer=words) for model in tables]
  fewer = dataclasses.replace(drafter.model, vocab_size=100)
  fewer = drafter._replace(model=fewer)
  foreign = r'tokenizer: must have a piece for each of the 768 logits .* 280'
  for run, said in (
    # More tokens than one block can have.
    (lambda: cascades.agreement(tables, 'a', 2**31 - 1), 'max_new_t.*2796202'),
    (lambda: cascades.agreement((verifier, others[1]), 'a'), 'drafter: its to'),
    (lambda: cascades.agreement(others, 'a'), foreign),
    (lambda: sampler.Sampler(*others), foreign),
    (lambda: small.sampler(others[0], gamma=0), foreign),
    (lambda: sampler.Sampler(*tables, words), foreign),
    (lambda: sampler.Sampler(verifier, others[1]), r'drafter: its tok.* \(280'),
    (
      lambda: sampler.Sampler(verifier, fewer),
      'drafter: must have as many log',
    ),
    (lambda: sampler.Sampler(verifier), 'drafter: none is given'),
  ):
    with pytest.raises(ValueError, match=f'^{said}'):
      run()


def test_a_chat_is_continued_after_its_template():
  template = (
    '{{ bos_token }}{% for m in messages %}{{ m.content }}: {% endfor %}'
  )
  pair = [
    x._replace(tokenizer=x.tokenizer.with_chat_template(template))
    for x in _of_tables()
  ]
  chat = cascades.agreement(pair, ['one', 'two'], 8, apply_chat_template=True)
  assert chat[0] == cascades.agreement(pair, Conversation([('user', 'one')]), 8)
  plain = cascades.agreement(pair, ['one: ', 'two: '], 8)
  assert [x.tokens for x in chat] == [x.tokens for x in plain]
