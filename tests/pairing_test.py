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
from cascades.drafters import recurrent
from cascades.models import tokenizers
from cascades.sampler import sampler
from experiments import tasks
from experiments.training import tokenizer_training

pytestmark = pytest.mark.usefixtures('few_shapes')


@functools.cache
def _models():
  return load_model('tiny-verifier'), load_model('tiny-drafter')


@functools.cache
def _prompts():
  problems = tasks.TASKS['word_problems'].load(split='test', num_examples=4)
  return [example.prompt for example in problems]


_SEVERAL = dict(drafts=3, verification='multi_round')
# A verifier of each family, and a drafter of each kind.
_STRICT = [
  ('hf_gemma2', 'self:2', {}),
  ('hf_gemma3', 'eagle3_joined', _SEVERAL),
  ('hf_gemma3n', 'hf_gemma3', {}),
  ('hf_gemma4_dense', 'hf_gemma4_dense_assistant', {}),
  ('hf_gemma4_experts', 'hf_gemma4_experts_assistant', {}),
  ('hf_gemma4_shared', 'hf_gemma4_shared_assistant', _SEVERAL),
]
_STRICT += [
  ('tiny-verifier', drafter, options)
  for drafter, options in (
    ('ngram:1', {}),
    ('tiny-recurrent', dict(drafts=4, verification='match', beam=True)),
    ('tiny-recurrent', dict(drafts=4, verification='k_seq')),
    ('self:2', {}),
    ('self:4', dict(drafts=2, verification='match')),
    ('tiny-drafter', _SEVERAL),
    ('tiny-drafter', dict(stop_below=0.8)),
    *(
      (kind.syntax, {})
      for kind in drafters.DRAFTERS.values()
      if not kind.reads_files
    ),
  )
]


@pytest.mark.slow
@pytest.mark.parametrize(('verifier', 'drafter', 'options'), _STRICT)
def test_greedy_and_strict_is_the_verifier_alone(verifier, drafter, options):
  is_tiny = verifier == 'tiny-verifier'
  model = load_model(verifier if is_tiny else small.FIXTURES / verifier)
  drafter = next(map(str, small.FIXTURES.glob(drafter)), drafter)
  alone = small.sampler(model, gamma=0, temperature=0.0)
  usual = dict(method='speed', lenience=0.0, gamma=3, temperature=0.0)
  strict = small.sampler(model, drafter, **usual | options)
  texts = ['the quick brown fox', '', 'every token is either kept']
  texts, new = (_prompts(), 40) if is_tiny else (texts, 24)
  want, answers = (s.sample(texts, max_new_tokens=new) for s in (alone, strict))
  assert [a.tokens for a in answers] == [a.tokens for a in want]
  # A row is what it is by itself, and a conversation goes on.
  one = strict.sample(texts[1], max_new_tokens=new)
  assert (one.tokens, one.counts) == (answers[1].tokens, answers[1].counts)
  said = []
  for by in alone, strict:
    begun = by.sample(texts[0], max_new_tokens=6, return_state=True)
    then = by.sample(texts[2], max_new_tokens=12, last_state=begun.state)
    said.append((begun.tokens, then.tokens))
  assert said[0] == said[1]
  for counts in (answer.counts for answer in answers):
    calls = counts['verifier_calls']
    read, most = counts['verifier_tokens'] - calls, 3 * calls
    if 'ngram' in drafter or 'stop_below' in options:
      # Where there is no draft, the verifier reads one token.
      assert read % 3 == 0
      assert counts['drafted'] <= read <= most
    else:
      assert read == options.get('drafts', 1) * most
    assert counts['drafted'] >= counts['examined'] >= counts['accepted']
    assert ('ngram' in drafter) == (counts['drafter_calls'] == 0)
  if is_tiny and 'ngram' not in drafter:
    calls = sum(a.counts['verifier_calls'] for a in answers)
    assert calls < sum(len(a.tokens) for a in answers)


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
  bound_drafter = drafters.bind_drafter(verifier, str(small.FIXTURES / drafter))
  small.check_continued(verifier, bound_drafter, text, greedy, law[0])


def test_a_head_is_kept_and_knows_its_verifier(tmp_path):
  verifier, drafter = _models()
  width = verifier.model.hidden_size(verifier.params)
  head = recurrent.init_head(jax.random.key(0), width)
  folder = tmp_path / 'head'
  recurrent.save(folder, head, verifier)
  loaded = recurrent.RecurrentHead.load(folder)
  spec = loaded
  for name, x in head.items():
    np.testing.assert_array_equal(loaded.head[name], x)
  assert (folder / 'head.safetensors').stat().st_mode & 0o444 == 0o444
  spec.bind(verifier)
  # In whatever order its weights lie.
  assert recurrent.fingerprint(verifier.unpack()) == loaded.fingerprint
  # Or as what they are loaded.
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), verifier.params)
  spec.bind(verifier._replace(params=half))
  with pytest.raises(ValueError, match='head was trained for a verifier with'):
    sampler.Sampler(drafter, str(folder))
  # A broken one is refused.
  (folder / 'head.json').write_text('{"kind": "other"}')
  with pytest.raises(ValueError, match="kind must be 'recurrent', got 'other'"):
    recurrent.RecurrentHead.load(folder)
  recurrent.save(folder, head | {'bias': np.zeros(3, np.float32)}, verifier)
  with pytest.raises(ValueError, match='tensors have other names or shapes'):
    recurrent.RecurrentHead.load(folder)
  (folder / 'head.safetensors').write_bytes(b'x')
  with pytest.raises(ValueError, match='cannot be read as a recurrent head'):
    recurrent.RecurrentHead.load(folder)


@pytest.mark.parametrize(
  ('name', 'kind', 'shape'),
  [
    *(('state', 'F32', x) for x in ((0, 5), (2**40, 0), ())),
    *(('mix', 'F32', x) for x in ((), (2**40, 0, 0))),
    *(('join', x, (8, 4)) for x in ('F8_E4M3', 'I32')),
    *(('vocabulary', x, (1,)) for x in ('F8_E4M3', 'F32')),
    # The last has zeros.
    *(('vocabulary', 'I32', x) for x in ((0,), (), (1, 1), (2,))),
  ],
)
def test_a_head_of_other_tensors_is_refused(tmp_path, name, kind, shape):
  _save_small_head(tmp_path, [3, 5])
  assert recurrent.RecurrentHead.load(tmp_path).draft_vocab_ids.tolist() == [
    3,
    5,
  ]
  small.as_type(tmp_path / 'head.safetensors', name, kind, shape)
  with pytest.raises(ValueError, match='cannot be read as a recurrent head'):
    recurrent.RecurrentHead.load(tmp_path)


@pytest.mark.parametrize('says', [[-1, 2], [3, 3], [5, -(2**31)]])
def test_a_head_says_ids_in_order(tmp_path, says):
  _save_small_head(tmp_path, says)
  with pytest.raises(ValueError, match='vocabulary must be a list of incr'):
    recurrent.RecurrentHead.load(tmp_path)


def _save_small_head(folder, says):
  """A head of four numbers, of the bundled verifier."""
  head = recurrent.init_head(jax.random.key(0), 4)
  recurrent.save(folder, head, _models()[0], np.array(says))


def test_a_head_says_tokens_of_its_verifier(tmp_path):
  _save_small_head(tmp_path, [3, 767])
  drafters.bind_drafter(_models()[0], str(tmp_path))
  _save_small_head(tmp_path, [3, 768])
  with pytest.raises(ValueError, match='768 of the verifier, got 768; save'):
    drafters.bind_drafter(_models()[0], str(tmp_path))


def test_a_head_may_have_no_layers(tmp_path):
  head = recurrent.init_head(jax.random.key(0), 4, layers=0)
  recurrent.save(tmp_path, head, _models()[0])
  assert recurrent.RecurrentHead.load(tmp_path).head['mix'].shape == (0, 4, 4)


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
    drafters.bind_drafter(verifier, other)
  with pytest.raises(ValueError, match='got 9 and 768'):
    drafters.check_pair(verifier, drafter._replace(model=model))


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
      "token 5 is '<start_of_turn>' for the drafter and '<0x00>' for the verif",
    ),
    (_tokenizer(295), "(295 pieces) must be the verifier's (290 pieces), but"),
  ):
    drafter = verifier._replace(tokenizer=other)
    message = conftest.refused(
      'drafter', drafters.check_pair, verifier, drafter
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
  drafters.check_pair(verifier, verifier._replace(tokenizer=other))


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
    (
      'tiny-drafter',
      dict(fill_unselected_logits=False),
      'fill_unselected_logits: .* applies to assistants',
    ),
    ('tiny-recurrent', dict(beam=True), "'token' needs independent draws"),
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
