"""Which drafters go with which verifiers, and heads on disk."""

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

pytestmark = pytest.mark.usefixtures('few_shapes')


@functools.cache
def _verifier():
  return load_model('tiny-verifier')


def _save_head(folder, says=None, layers=2, size=4):
  """Writes a head of the bundled verifier, and loads it."""
  head = recurrent.init_head(jax.random.key(0), size, layers=layers)
  says = None if says is None else np.array(says)
  recurrent.save(folder, head, _verifier(), says)
  return head


def test_a_head_is_kept_and_knows_its_verifier(tmp_path):
  folder, verifier = tmp_path / 'head', _verifier()
  head = _save_head(folder, size=verifier.model.hidden_size(verifier.params))
  loaded = recurrent.RecurrentHead.load(folder)
  small.same(loaded.head, head)
  assert (folder / 'head.safetensors').stat().st_mode & 0o444 == 0o444
  # In whatever order its weights lie, or as what they are loaded.
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), verifier.params)
  for same in verifier, verifier.unpack(), verifier._replace(params=half):
    loaded.bind(same)
  said = conftest.refused('drafter', loaded.bind, load_model('tiny-drafter'))
  assert 'head was made for another verifier (fingerprint: ' in said
  (folder / 'head.json').write_text('{"kind": "other"}')
  said = conftest.refused('drafter', recurrent.RecurrentHead.load, folder)
  assert "kind must be 'recurrent', got 'other'" in said


@pytest.mark.parametrize(
  ('name', 'kind', 'shapes'),
  [
    ('state', 'F32', ((0, 0), (0, 5), (2**40, 0), ())),
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
    with pytest.raises(ValueError, match=f'the tensor {name} '):
      recurrent.RecurrentHead.load(tmp_path)


def test_a_head_says_ids_of_its_verifier_in_order(tmp_path):
  _save_head(tmp_path, [3, 767], layers=0)
  assert recurrent.RecurrentHead.load(tmp_path).head['mix'].shape == (0, 4, 4)
  drafters.bind_drafter(_verifier(), str(tmp_path))
  for says, said in (
    *((x, 'must be a list of incr') for x in ([-1, 2], [3, 3], [5, -(2**31)])),
    ([3, 768], 'drafts its tokens'),
  ):
    _save_head(tmp_path, says)
    with pytest.raises(ValueError, match=said):
      drafters.bind_drafter(_verifier(), str(tmp_path))


# --- Tokenizers ---


@functools.cache
def _tokenizer(vocab_size=290, symbols=()):
  texts = ['one model drafts', 'and another one verifies'] * 9
  return small.tokenizer(texts, vocab_size, symbols)


def test_models_of_two_families_are_refused():
  verifier = _verifier()._replace(tokenizer=_tokenizer())
  for other, said in (
    (
      _tokenizer(290, ('<start_of_turn>',)),
      "token 5 is '<start_of_turn>' for the drafter and '<0x00>' for the verif",
    ),
    (_tokenizer(295), "must be the verifier's, but token 2"),
  ):
    drafter = verifier._replace(tokenizer=other)
    given = drafters.bind_drafter, verifier, drafter
    assert said in conftest.refused('drafter', *given)
  # The same pieces, and something else that is no piece.
  proto = verifier.tokenizer.proto
  other = tokenizers.Tokenizer(proto.replace(b'identity', b'nfkc____'))
  assert other != verifier.tokenizer
  drafters.bind_drafter(verifier, verifier._replace(tokenizer=other))


_TWO = dict(drafts=2, verification='k_seq')


@pytest.mark.parametrize(
  ('drafter', 'options', 'said'),
  [
    ('self:6', {}, 'layers: must be from 1 to .* got 6'),
    ('self:x', {}, "'self:x' must end with a number of layers; write"),
    ('ngram:0', {}, "'ngram:0' must end with a number of tokens; write"),
    ('ngram', dict(stop_below=0.5), 'stop_below: .* applies to language model'),
    ('ngram', dict(stop_belo=0.5), "stop_belo: .* did you mean 'stop_below'"),
    ('ngram', _TWO | dict(verification='match'), 'drafts: .* at most 1 with N'),
    ('tiny-recurrent', _TWO | dict(beam=True), "'k_seq' needs independent dra"),
  ],
)
def test_what_does_not_go_together_is_refused(drafter, options, said):
  with pytest.raises(ValueError, match=said):
    small.sampler(_verifier(), drafter, **options).sample('a')
