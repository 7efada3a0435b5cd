"""Drafters by name, through the sampler, and refusals."""

import dataclasses
import functools

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from cascades import drafters, load_model
from cascades.drafters import binding, token_checks
from cascades.drafters.recurrent import recurrent_checkpoint, recurrent_drafter
from cascades.drafters.recurrent.recurrent_spec import RecurrentSpec
from cascades.models import tokenizers
from cascades.sampler import sampler
from experiments import tasks
from experiments.training import tokenizer_training

_NEW = 40
# Kinds whose names are those of their entries; `syntax` is an example.
_WITHOUT_FILES = [
  name for name, kind in drafters.DRAFTERS.items() if kind.claims is None
]
pytestmark = pytest.mark.usefixtures('few_shapes')


@functools.cache
def _models():
  return load_model('tiny-verifier'), load_model('tiny-drafter')


@functools.cache
def _prompts():
  problems = tasks.TASKS['word_problems'].load(split='test', num_examples=4)
  return [example.prompt for example in problems]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('drafter', 'options'),
  [
    ('ngram:1', {}),
    ('tiny-recurrent', dict(drafts=4, verification='match', beam=True)),
    ('self:2', {}),
    ('self:4', dict(drafts=2, verification='match')),
    ('tiny-drafter', dict(drafts=3, verification='multi_round')),
    ('tiny-drafter', dict(stop_below=0.8)),
    ('tiny-recurrent', dict(drafts=4, verification='k_seq')),
  ],
  ids=str,
)
def test_greedy_and_strict_is_the_verifier_alone(drafter, options):
  # In a conversation the hidden state, and the caches of both, go on as well.
  answers = small.check_alone(
    *(_models()[0], drafter, _prompts(), _NEW),
    turns=drafter in ('tiny-recurrent', 'self:2'),
    **options,
  )
  for answer in answers:
    counts = answer.counts
    size = 1 + 3 * options.get('drafts', 1)
    calls, read = counts['verifier_calls'], counts['verifier_tokens']
    ngrams = drafter == 'ngram:1'
    if ngrams or 'stop_below' in options:
      # Where there is no draft, the verifier reads one token.
      assert (read - calls) % 3 == 0
      assert counts['drafted'] <= read - calls <= 3 * calls
      assert not ngrams or counts['drafted'] == read - calls
    else:
      assert read == size * calls
    assert counts['drafted'] >= counts['examined'] >= counts['accepted']
    if ngrams:
      assert counts['drafter_calls'] == 0
  if not ngrams:
    calls = sum(a.counts['verifier_calls'] for a in answers)
    assert calls < sum(len(a.tokens) for a in answers)


@pytest.mark.slow
@pytest.mark.parametrize('name', _WITHOUT_FILES)
def test_any_drafter_without_files_keeps_the_verifiers_answers(name):
  syntax = drafters.DRAFTERS[name].syntax
  small.check_alone(_models()[0], syntax, _prompts(), _NEW)


@pytest.mark.slow
@pytest.mark.parametrize('drafter', ['hf_gemma2', 'eagle3_apart'])
def test_a_drafter_with_fewer_positions_than_the_text_changes_nothing(drafter):
  # Of 64, all of them; the text has 720 tokens. What follows it is
  # transformers', greedily and at a temperature of .7.
  config = small.read_json(small.FIXTURES / drafter / 'config.json')
  layer = config.get('transformer_layer_config', config)
  assert layer['max_position_embeddings'] == 64
  with np.load(small.FIXTURES / 'hf_gemma3/long.npz') as file:
    text, greedy, law = (
      file[name] for name in ('tokens', 'greedy_6', 'drawn_from_6')
    )
  verifier = load_model(small.FIXTURES / 'hf_gemma3')
  bound_drafter = binding.bind_drafter(verifier, str(small.FIXTURES / drafter))
  small.check_continued(verifier, bound_drafter, text, greedy, law[0])


def test_a_head_is_kept_and_knows_its_verifier(tmp_path):
  verifier, drafter = _models()
  width = verifier.model.hidden_size(verifier.params)
  head = recurrent_drafter.init_head(jax.random.key(0), width)
  folder = tmp_path / 'head'
  recurrent_checkpoint.save(folder, head, verifier)
  loaded = recurrent_checkpoint.load(folder)
  spec = RecurrentSpec(checkpoint=loaded)
  for name, x in head.items():
    np.testing.assert_array_equal(loaded.head[name], x)
  assert (folder / 'head.safetensors').stat().st_mode & 0o444 == 0o444
  spec.bind(verifier)
  # In whatever order its weights lie.
  assert (
    recurrent_checkpoint.fingerprint(verifier.unpack()) == loaded.fingerprint
  )
  # Or as what they are loaded.
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), verifier.params)
  spec.bind(verifier._replace(params=half))
  with pytest.raises(ValueError, match='head was trained for a verifier with'):
    sampler.Sampler(drafter, str(folder))
  # A broken one is refused.
  (folder / 'head.json').write_text('{"kind": "other"}')
  with pytest.raises(ValueError, match="kind must be 'recurrent', got 'other'"):
    recurrent_checkpoint.load(folder)
  recurrent_checkpoint.save(
    folder, head | {'bias': np.zeros(3, np.float32)}, verifier
  )
  with pytest.raises(ValueError, match='tensors have other names or shapes'):
    recurrent_checkpoint.load(folder)
  (folder / 'head.safetensors').write_bytes(b'x')
  with pytest.raises(ValueError, match='cannot be read as a recurrent head'):
    recurrent_checkpoint.load(folder)


@pytest.mark.parametrize(
  ('name', 'kind', 'shape'),
  [
    ('state', 'F32', (0, 5)),
    ('state', 'F32', (2**40, 0)),
    ('state', 'F32', ()),
    ('mix', 'F32', ()),
    ('mix', 'F32', (2**40, 0, 0)),
    ('join', 'F8_E4M3', (8, 4)),
    ('join', 'I32', (8, 4)),
    ('vocabulary', 'F8_E4M3', (3,)),
    ('vocabulary', 'F32', (1,)),
    ('vocabulary', 'I32', (0,)),
    ('vocabulary', 'I32', ()),
    ('vocabulary', 'I32', (1, 1)),
    # All of them zeros.
    ('vocabulary', 'I32', (2,)),
  ],
)
def test_a_head_of_other_tensors_is_refused(tmp_path, name, kind, shape):
  _save_small_head(tmp_path, [3, 5])
  assert recurrent_checkpoint.load(tmp_path).draft_vocab_ids.tolist() == [3, 5]
  small.as_type(tmp_path / 'head.safetensors', name, kind, shape)
  with pytest.raises(ValueError, match='cannot be read as a recurrent head'):
    recurrent_checkpoint.load(tmp_path)


@pytest.mark.parametrize('says', [[-1, 2], [3, 3], [5, -(2**31)]])
def test_a_head_says_ids_in_order(tmp_path, says):
  _save_small_head(tmp_path, says)
  with pytest.raises(ValueError, match='vocabulary must be a list of incr'):
    recurrent_checkpoint.load(tmp_path)


def _save_small_head(folder, says):
  """A head of four numbers, of the bundled verifier."""
  head = recurrent_drafter.init_head(jax.random.key(0), 4)
  recurrent_checkpoint.save(folder, head, _models()[0], np.array(says))


def test_a_head_says_tokens_of_its_verifier(tmp_path):
  verifier, _ = _models()
  _save_small_head(tmp_path, [3, verifier.model.vocab_size - 1])
  RecurrentSpec(path=str(tmp_path)).bind(verifier)
  _save_small_head(tmp_path, [3, verifier.model.vocab_size])
  with pytest.raises(ValueError, match='768 of the verifier, got 768; save'):
    RecurrentSpec(path=str(tmp_path)).bind(verifier)


def test_a_head_may_have_no_layers(tmp_path):
  head = recurrent_drafter.init_head(jax.random.key(0), 4, layers=0)
  recurrent_checkpoint.save(tmp_path, head, _models()[0])
  assert recurrent_checkpoint.load(tmp_path).head['mix'].shape == (0, 4, 4)


def test_a_tree_that_does_not_fit_is_refused():
  one = small.sampler(
    *_models(), drafts=8, verification='match', gamma=8, cache_length=100
  )
  with pytest.raises(ValueError, match='do not fit into cache_length 100'):
    one.sample('a', max_new_tokens=40)


def test_another_vocabulary_is_refused():
  verifier, drafter = _models()
  model = dataclasses.replace(drafter.model, vocab_size=9)
  other = drafters.BoundDrafter(drafters.ModelDrafter(model), ())
  with pytest.raises(ValueError, match='768 tokens of the verifier, got 9'):
    binding.bind_drafter(verifier, other)
  with pytest.raises(ValueError, match='got 9 and 768'):
    token_checks.check_pair(verifier, drafter._replace(model=model))


# --- Tokenizers ---


_TEXTS = ['one model drafts', 'and another one verifies'] * 9


@functools.cache
def _tokenizer(vocab_size=290, symbols=()):
  return tokenizer_training.train(_TEXTS, vocab_size, symbols)


def test_models_of_two_families_are_refused():
  verifier = _models()[0]._replace(tokenizer=_tokenizer())
  for other, said in (
    (
      _tokenizer(290, ('<start_of_turn>',)),
      "(290 pieces) must be the verifier's (290 pieces), but token 5 is"
      " '<start_of_turn>' for the drafter and '<0x00>' for the verifier",
    ),
    (
      _tokenizer(295),
      "(295 pieces) must be the verifier's (290 pieces), but token",
    ),
  ):
    drafter = verifier._replace(tokenizer=other)
    message = conftest.refused(
      'drafter', token_checks.check_pair, verifier, drafter
    )
    assert said in message
    assert message.endswith('take two models of one family.')
    conftest.refused('drafter', sampler.Sampler, _models()[0], drafter)


def test_tokenizers_that_only_cut_otherwise_go_together():
  verifier = _models()[0]._replace(tokenizer=_tokenizer())
  # The same pieces, and something else that is no piece.
  proto = verifier.tokenizer.proto
  other = tokenizers.Tokenizer(proto.replace(b'identity', b'nfkc____'))
  assert other != verifier.tokenizer
  assert tokenizers.first_difference(other, verifier.tokenizer) is None
  token_checks.check_pair(verifier, verifier._replace(tokenizer=other))


@pytest.mark.parametrize(
  ('drafter', 'options', 'said'),
  [
    ('self:6', {}, 'layers: must be from 1 to .* got 6'),
    ('self:x', {}, "'self:x' must end with a number of layers; write"),
    ('ngram:0', {}, "'ngram:0' must end with a number of tokens; write"),
    ('ngram', dict(stop_below=0.5), 'stop_below: .* applies to language model'),
    (
      *('ngram', dict(drafts=2, verification='match')),
      'drafts: must be at most 1 with NgramDrafter',
    ),
    ('tiny-drafter', dict(beam=True), 'beam: .* applies to recurrent heads'),
    ('tiny-drafter', dict(drafts=0), 'drafts: must be 1 or more, got 0'),
    (
      'tiny-drafter',
      dict(stop_below=2),
      'stop_below: must be a number from 0 to 1, got 2',
    ),
    (
      'tiny-recurrent',
      dict(drafts=2, verification='k_seq', beam=True),
      "'k_seq' needs independent draws",
    ),
    (
      'tiny-drafter',
      dict(drafts=2, verification='k_seq', method='cactus'),
      "'k_seq' needs a method with a single target",
    ),
  ],
)
def test_what_does_not_go_together_is_refused(drafter, options, said):
  with pytest.raises(ValueError, match=said):
    small.sampler(_models()[0], drafter, **options)
