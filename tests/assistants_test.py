"""Gemma 4's assistants: what transformers says of them, and the law.

The fixtures were made by transformers (see make_assistant_fixtures.py there):
verifiers with layers that share caches, with keys that are values, and with a
mixture of experts, and an assistant for each.
"""

import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cascades
from cascades import decoding, load_model
from cascades.drafters import assistants, pairing

FIXTURES = pathlib.Path(__file__).parent / 'fixtures'
KINDS = ('shared', 'dense', 'experts')
_TEXTS = ['the quick brown fox', 'a cascade asks', 'every token is either kept']


def _folders(kind) -> tuple[str, str]:
  verifier = FIXTURES / f'hf_gemma4_{kind}'
  return str(verifier), f'{verifier}_assistant'


@functools.cache
def verifier(kind):
  return load_model(_folders(kind)[0])


@functools.cache
def equipped(kind, others_say=True):
  return assistants.load(_folders(kind)[1]).equip(verifier(kind), others_say)


@functools.cache
def expected(kind):
  file = FIXTURES / f'hf_gemma4_{kind}_assistant/expected.npz'
  with np.load(file, allow_pickle=False) as found:
    return dict(found)


def _read(kind, tokens, garbage=()):
  """The verifier's cache and last state, before the last token."""
  model, params, _ = verifier(kind)
  cache = model.init_cache(params, 32)
  written = np.concatenate([tokens[:-1], garbage]).astype(np.int32)
  _, hidden, cache = decoding.read_hidden(
    model, params, cache, jnp.asarray(written), jnp.int32(0)
  )
  last = len(tokens) - 2
  return model.rewind(cache, jnp.int32(last + 1)), hidden[last]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('length', [4, 20])
@pytest.mark.parametrize('garbage', [(), (5, 6, 7)], ids=['', 'rejected'])
def test_drafts_are_transformers(kind, length, garbage):
  found = expected(kind)
  tokens = found['tokens'][:length]
  drafter, params = equipped(kind)
  # What was rejected lies beyond the text, and is not looked at.
  cache, state = _read(kind, tokens, garbage)
  banks = drafter.banks(cache, jnp.int32(length))
  token, step = jnp.asarray(tokens[-1]), jax.jit(drafter.step)
  for said, after in zip(
    found[f'logits_{length}'], found[f'states_{length}'], strict=True
  ):
    state, logits = step(params, banks, jnp.int32(length - 1), state, token)
    np.testing.assert_allclose(logits, said, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state, after, rtol=0, atol=1e-5)
    token = jnp.argmax(logits)


def test_tokens_of_other_groups_may_have_nothing():
  drafter, params = equipped('shared')
  silent, _ = equipped('shared', others_say=False)
  u = jax.random.normal(jax.random.key(0), (16,))
  both = drafter.logits(params[0], u), silent.logits(params[0], u)
  some = np.isfinite(both[1])
  # Five groups of 16, of four tokens each.
  assert some.sum() == 20
  np.testing.assert_array_equal(both[0][some], both[1][some])
  np.testing.assert_allclose(both[0][~some], both[1][some].min() - 1)


def test_a_text_of_one_token_has_nothing_to_look_at():
  drafter, params = equipped('dense')
  model, theirs, _ = verifier('dense')
  cache = model.init_cache(theirs, 8)
  banks = drafter.banks(cache, jnp.int32(1))
  assert not any(bank.seen.any() for bank in banks.values())
  state, logits = drafter.step(
    params, banks, jnp.int32(0), jnp.ones(24), jnp.int32(2)
  )
  assert np.isfinite(state).all()
  assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
  'more', [{}, {'drafts': 3, 'verification': 'multi_round'}], ids=['', 'three']
)
def test_greedy_and_strict_is_the_verifier_alone(kind, more):
  alone = cascades.Sampler(verifier(kind), gamma=0, temperature=0.0)
  strict = cascades.Sampler(
    *_folders(kind),
    method='speed',
    lenience=0.0,
    gamma=3,
    temperature=0.0,
    **more,
  )
  want, got = (s.sample(_TEXTS, max_new_tokens=24) for s in (alone, strict))
  assert [a.tokens for a in got] == [a.tokens for a in want]
  # Rows of unlike lengths are what they are alone.
  (one,) = strict.sample(_TEXTS[1:2], max_new_tokens=24)
  assert one.tokens == got[1].tokens
  assert one.counts == got[1].counts


# --- Refusals ---


def _refused(kind_of_verifier, folder):
  with pytest.raises(ValueError, match=r'^drafter: ') as error:
    assistants.load(folder).equip(verifier(kind_of_verifier))
  message = str(error.value)
  assert '\n' not in message
  assert message.endswith('.')
  return message


def test_a_verifier_of_another_size_is_refused():
  # Both are as wide; heads for keys are not as many.
  said = _refused('dense', _folders('shared')[1])
  assert 'another verifier (with 1 heads of 8 for keys' in said
  with pytest.raises(ValueError, match=r'another verifier \(a Gemma 4\)'):
    pairing.equip(load_model('tiny-verifier'), _folders('shared')[1])


@pytest.mark.parametrize(
  ('field', 'value', 'said'),
  [
    ('backbone_hidden_size', 25, 'asks for (16, 50)'),
    ('num_centroids', 15, 'asks for (15, 16)'),
  ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, field, value, said):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  file = folder / 'config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
  assert said in _refused('shared', folder)


def test_an_order_that_leaves_tokens_out_is_refused(tmp_path):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  file = folder / 'model.safetensors'
  tensors = load_file(file)
  tensors['masked_embedding.token_ordering'][0] = 1
  tensors['masked_embedding.token_ordering'][1] = 1
  save_file(tensors, file)
  assert 'not each of them once' in _refused('shared', folder)
  del tensors['model.norm.weight']
  save_file(tensors, file)
  assert 'lacks the tensor model.norm.weight' in _refused('shared', folder)


def test_an_assistant_is_no_model_of_its_own():
  name = _folders('shared')[1]
  assert not pairing.is_model(name)
  with pytest.raises(ValueError, match='gemma4_assistant'):
    load_model(name)
