"""Gemma 4's assistants: what transformers says of them, and refusals.

The fixtures were made by transformers: verifiers with layers that share caches,
with keys that are values, and with a mixture of experts, and an assistant for
each; after texts of up to 720 tokens, with a window of 6 and one of 512.
"""

import dataclasses
import functools
import shutil

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers

from cascades import decoding, drafters, load_model
from cascades.drafters import assistant
from cascades.models import language


def _folders(kind) -> tuple[str, str]:
  verifier = small.FIXTURES / f'hf_gemma4_{kind}'
  return str(verifier), f'{verifier}_assistant'


@functools.cache
def _pair(kind, window=None):
  """A verifier and its assistant, which is bound; of a window."""
  whole, own = _folders(kind)
  verifier, loaded = load_model(whole), assistant.Assistant.load(own)
  if window is not None:
    config = small.read_json(small.FIXTURES / f'hf_gemma4_{kind}/config.json')
    model = language.from_config(config | {'sliding_window': window})
    model = dataclasses.replace(model, vocab_size=verifier.model.vocab_size)
    verifier = verifier.unpack()._replace(model=model)
    text = loaded.text.model_copy(update={'sliding_window': window})
    loaded = loaded.replace(text=text)
  return verifier, loaded.bind(verifier)


# What was rejected lies beyond the text, and is not looked at.
_CASES = [(4, (), None), (20, (5, 6, 7), None)]
_CASES += [(720, (5, 6, 7), window) for window in (6, 512)]


@pytest.mark.parametrize('kind', ['shared', 'dense', 'experts'])
@pytest.mark.parametrize(
  ('length', 'garbage', 'window'), tiers.first(_CASES, 2)
)
def test_drafts_are_transformers(kind, length, garbage, window):
  # Three steps, greedily.
  (model, own, _), (drafter, params) = _pair(kind, window)
  name = 'long' if window else 'expected'
  with np.load(f'{_folders(kind)[1]}/{name}.npz') as file:
    found = dict(file)
  tokens, last = found['tokens'][:length], length - 1
  cache = model.init_cache(own, length + 12)
  written = np.concatenate([tokens[:-1], garbage]).astype(np.int32)
  _, hidden, cache = decoding.read_hidden(
    *(model, own, cache, jnp.asarray(written), jnp.int32(0))
  )
  cache, state = model.rewind(cache, jnp.int32(last)), hidden[last - 1]
  token, step = jnp.asarray(tokens[-1]), jax.jit(drafter.step)
  views = drafter.views(cache, jnp.int32(length))
  key = window or length
  want = found[f'logits_{key}'], found[f'states_{key}']
  for i, (said, after) in enumerate(zip(*want, strict=True)):
    state, logits = step(params, views, jnp.int32(last), state, token, i)
    np.testing.assert_allclose(logits, said, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state, after, rtol=0, atol=1e-5)
    token = jnp.argmax(logits)


# --- Refusals ---


_ORDER, _NORM = 'masked_embedding.token_ordering', 'model.norm.weight'
_TEXT, _TOP = 'text_config', 'centroid_intermediate_top_k'


@pytest.mark.parametrize(
  ('verifier', 'fields', 'more', 'said'),
  [
    # It is as wide; heads for keys are not as many.
    ('hf_gemma4_dense', {}, {}, 'another verifier (key heads ('),
    ('tiny-verifier', {}, {}, 'another verifier (Gemma 4: True, not False)'),
    (None, {'backbone_hidden_size': 25}, {}, 'implies (16, 50)'),
    (None, {'num_centroids': None}, {}, 'num_centroids must'),
    (None, {_TOP: 17}, {}, f'{_TOP} must be at most num_centroids (16)'),
    (None, {_TEXT: [1]}, {}, 'text_config must'),
    (None, {_TEXT: {'num_hidden_layers': None}}, {}, 'num_hidden_layers must'),
    (None, {_TEXT: {'enable_moe_block': True}}, {}, 'enable_moe_block must'),
    # An order that leaves tokens out.
    (None, {}, {_ORDER: np.zeros(64, np.int64)}, 'must have each of 64 tokens'),
    (None, {}, {_ORDER: np.zeros(64)}, 'has the type F64, and ids must be'),
    (None, {}, {_NORM: None}, 'lacks the tensor model.norm.weight'),
  ],
)
def test_what_does_not_fit_is_refused(tmp_path, verifier, fields, more, said):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  small.rewrite(folder, fields, more)
  given = small.load(verifier or 'hf_gemma4_shared'), str(folder)
  assert said in conftest.refused('drafter', drafters.bind_drafter, *given)


def test_an_assistant_is_no_model_of_its_own():
  name = _folders('shared')[1]
  head = str(small.FIXTURES / 'eagle3_apart')
  for folder, kind in (name, 'gemma4_assistant'), (head, 'eagle3'):
    assert not drafters.kind_of(folder).is_language_model
    with pytest.raises(ValueError, match=f'{kind}.*or name an assistant'):
      load_model(folder)
  said = 'method: drafter_only decodes with the drafter'
  with pytest.raises(ValueError, match=said):
    small.sampler(_pair('shared')[0], name, method='drafter_only')


@pytest.mark.slow
def test_an_assistant_may_have_another_dtype_than_its_verifier():
  whole, name = _folders('shared')
  pair = load_model(whole, 'bfloat16'), drafters.load(name, 'float32')
  assert small.sampler(*pair).sample('a', max_new_tokens=4).counts['drafted']
