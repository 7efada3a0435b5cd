"""Which drafters go with which verifiers, and heads on disk."""

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
from experiments.training import tokenizer_training

pytestmark = pytest.mark.usefixtures('few_shapes')


@functools.cache
def _models():
  return load_model('tiny-verifier'), load_model('tiny-drafter')


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


def _save_head(folder, says, layers=2):
  """A head of four numbers, of the bundled verifier."""
  head = recurrent.init_head(jax.random.key(0), 4, layers=layers)
  recurrent.save(folder, head, _models()[0], np.array(says))


@pytest.mark.parametrize(
  ('name', 'kind', 'shapes'),
  [
    ('state', 'F32', ((0, 5), (2**40, 0), ())),
    ('mix', 'F32', ((), (2**40, 0, 0))),
    *(('join', x, ((8, 4),)) for x in ('F8_E4M3', 'I32')),
    *(('vocabulary', x, ((1,),)) for x in ('F8_E4M3', 'F32')),
    # The last has zeros.
    ('vocabulary', 'I32', ((0,), (), (1, 1), (2,))),
  ],
)
def test_a_head_of_other_tensors_is_refused(tmp_path, name, kind, shapes):
  for shape in shapes:
    _save_head(tmp_path, [3, 5])
    loaded = recurrent.RecurrentHead.load(tmp_path)
    assert loaded.draft_vocab_ids.tolist() == [3, 5]
    small.as_type(tmp_path / 'head.safetensors', name, kind, shape)
    with pytest.raises(ValueError, match='cannot be read as a recurrent head'):
      recurrent.RecurrentHead.load(tmp_path)


def test_a_head_says_ids_of_its_verifier_in_order(tmp_path):
  _save_head(tmp_path, [3, 767], layers=0)
  assert recurrent.RecurrentHead.load(tmp_path).head['mix'].shape == (0, 4, 4)
  drafters.bind_drafter(_models()[0], str(tmp_path))
  for says, said in (
    *((x, 'vocabulary must be a list of incr') for x in ([-1, 2], [3, 3])),
    ([5, -(2**31)], 'vocabulary must be a list of incr'),
    ([3, 768], '768 of the verifier, got 768; save'),
  ):
    _save_head(tmp_path, says)
    with pytest.raises(ValueError, match=said):
      drafters.bind_drafter(_models()[0], str(tmp_path))


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


_TWO = dict(drafts=2, verification='k_seq')
_LARGE = dict(drafts=8, verification='match', gamma=8, cache_length=100)


@pytest.mark.parametrize(
  ('drafter', 'options', 'said'),
  [
    ('self:6', {}, 'layers: must be from 1 to .* got 6'),
    ('self:x', {}, "'self:x' must end with a number of layers; write"),
    ('ngram:0', {}, "'ngram:0' must end with a number of tokens; write"),
    ('ngram', dict(stop_below=0.5), 'stop_below: .* applies to language model'),
    ('ngram', _TWO | dict(verification='match'), 'drafts: .* at most 1 with N'),
    ('tiny-drafter', dict(beam=True), 'beam: .* applies to recurrent heads'),
    (
      'tiny-drafter',
      dict(fill_unselected_logits=False),
      'fill.* to assistants',
    ),
    ('tiny-recurrent', dict(beam=True), "'token' needs independent draws"),
    ('tiny-drafter', _LARGE, 'do not fit into cache_length 100'),
    ('tiny-drafter', dict(drafts=0), 'drafts: must be 1 or more, got 0'),
    ('tiny-drafter', dict(stop_below=2), 'stop_below: .* from 0 to 1, got 2'),
    ('tiny-recurrent', _TWO | dict(beam=True), "'k_seq' needs independent dra"),
  ],
)
def test_what_does_not_go_together_is_refused(drafter, options, said):
  with pytest.raises(ValueError, match=said):
    small.sampler(_models()[0], drafter, **options).sample('a')
