"""Models, and folders that are written, compared with transformers and gemma.

The fixtures were made by transformers itself (see make_hf_fixtures.py there),
so that its weights, names, config.json and logits are the reference here.
"""

import dataclasses
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers
from small import FIXTURES, dtypes, load, read_json, same, stored

from cascades.models import (
  checkpoints,
  gemma_library,
  language,
  param_mapping,
  tokenizers,
)

CLASSIC = ('hf_gemma2', 'hf_gemma3')
FOUR = ('hf_gemma4_shared', 'hf_gemma4_dense', 'hf_gemma4_experts')


def _check_logits(checkpoint, folder, block=None):
  """That logits are transformers', at once or in blocks through the cache."""
  (model, params, _), slots = checkpoint, 24
  with np.load(FIXTURES / folder / 'expected.npz') as file:
    tokens, logits = file['tokens'], file['logits']
  step, cache, found = jax.jit(model.with_hidden), None, []
  if block:
    cache = model.init_cache(params, slots)
  for start in range(0, len(tokens), block or len(tokens)):
    some = jnp.asarray(tokens[start : start + (block or len(tokens))])
    positions = start + jnp.arange(len(some))
    mask = jnp.arange(slots if block else len(tokens)) <= positions[:, None]
    out, _, cache = step(params, some, positions, mask, cache)
    found.append(out)
  assert logits.shape[-1] == model.vocab_size
  np.testing.assert_allclose(np.concatenate(found), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize('folder', [*CLASSIC, 'hf_gemma3n', *FOUR])
@pytest.mark.parametrize('block', tiers.first([5, None, 1]))
def test_logits_equal_those_of_transformers(folder, block):
  checkpoint = load(folder)
  # The text has twenty tokens.
  assert checkpoint.model.module.config.sliding_window_size == 6
  assert checkpoint.tokenizer.vocab_size <= checkpoint.model.vocab_size
  assert dtypes(checkpoint.params) == {'float32'}
  _check_logits(checkpoint, folder, block)


@pytest.mark.parametrize('folder', CLASSIC)
def test_a_key_value_head_for_every_query_head(folder, tmp_path):
  # Heads that are shared, spelled out: the same model in gemma's other layout.
  there = shutil.copytree(FIXTURES / folder, tmp_path / 'model')
  config, tensors = read_json(there / 'config.json'), stored(there)
  heads, dim = config['num_attention_heads'], config['head_dim']
  shared = heads // config['num_key_value_heads']
  for name, tensor in tensors.items():
    if 'k_proj' in name or 'v_proj' in name:
      by_head = tensor.reshape(-1, dim, tensor.shape[-1])
      tensors[name] = by_head.repeat(shared, 0).reshape(heads * dim, -1)
  # And rows that pad the table, which stand for no token.
  table = tensors[param_mapping.TABLE_TENSOR]
  tensors[param_mapping.TABLE_TENSOR] = np.concatenate([table, table[:6] + 1])
  fields = {'num_key_value_heads': heads, 'vocab_size': 70}
  small.rewrite(there, fields, tensors)
  read = checkpoints.load_model(there).unpack()
  assert read.model.vocab_size == 64
  assert 'qkv_einsum' in read.params['layer_0']['attn']
  _check_logits(read, folder)
  out = tmp_path / 'not' / 'there yet'
  checkpoints.write_folder(out, config | fields, *read[1:])
  same(stored(out), tensors)


@pytest.mark.parametrize('folder', CLASSIC)
def test_what_transformers_says_of_a_model_is_written(folder, tmp_path):
  # Its tensors too, see roundtrip_test.py; but not what no model has.
  checkpoints.save_model(tmp_path, load(folder))
  theirs = read_json(FIXTURES / folder / 'config.json')
  ours = read_json(tmp_path / 'config.json')
  of_none = {
    *('_sliding_window_pattern', 'sliding_window_pattern'),
    *('transformers_version', 'max_position_embeddings', 'use_cache'),
    *('attention_dropout', 'initializer_range', 'use_bidirectional_attention'),
  }
  for name in theirs.keys() - of_none:
    assert ours[name] == theirs[name], name
  said = read_json(tmp_path / 'tokenizer_config.json')
  tokenizer = tokenizers.read(tmp_path / 'tokenizer.model')
  ids = [tokenizer.token_id(said[f'{x}_token']) for x in ('pad', 'eos', 'bos')]
  assert ids == [tokenizers.PAD, tokenizers.EOS, tokenizers.BOS]
  assert said['tokenizer_class'] == 'GemmaTokenizer'
  assert said['add_bos_token']
  said = read_json(tmp_path / 'generation_config.json')
  assert [said[f'{x}_token_id'] for x in ('pad', 'eos', 'bos')] == ids


# --- config.json ---


@pytest.mark.parametrize(
  'family', ['gemma2', 'gemma3_text', 'gemma3n_text', 'gemma4_text']
)
def test_absent_fields_take_the_defaults_of_transformers(family):
  defaults = read_json(FIXTURES / 'hf_defaults.json')[family]
  silent = small.built({'model_type': family})
  assert silent == small.built(defaults)
  assert silent.num_layers == len(defaults['layer_types'])
  for name in ('hidden_size', 'head_dim', 'num_key_value_heads', 'vocab_size'):
    without = {k: v for k, v in defaults.items() if k != name}
    assert small.built(without) == silent, name


# As the config.json of each published size says it; of the last one gemma has
# no class, but it is a Gemma 4 all the same.
_PUBLISHED = read_json(FIXTURES / 'published_configs.json')


def test_every_checkpoint_of_gemma_is_known_here():
  # A new one wants a published config, and a fixture of its family.
  names = {f'{x}-{kind}' for x in _PUBLISHED for kind in ('pt', 'it')}
  names -= {'gemma4-12b-pt', 'gemma4-12b-it'}
  assert set(gemma_library.gemma_checkpoints()) == names


@pytest.mark.parametrize('size', [x for x in _PUBLISHED if x != 'gemma4-12b'])
def test_a_published_config_is_the_architecture_that_gemma_has(size):
  model, _ = language.from_gemma(f'{size}-it')
  published, changes, gates = small.built(_PUBLISHED[size]), {}, {}
  if re.match('gemma[23]-', size):
    # Published vocabularies are padded differently, and the gate is a choice.
    gates['transpose_gating_einsum'] = True
    changes = gates | {'num_embed': published.num_embed}
  own = model.module.config
  if hasattr(own, 'audio_encoder'):
    own = dataclasses.replace(own, audio_encoder=None)
  assert published == dataclasses.replace(own, **changes)
  # And what is written of it says the same; of parameters, nothing but their
  # type is looked at.
  table = jax.ShapeDtypeStruct((1, 1), jnp.bfloat16)
  params = {'embedder': {'input_embedding': table}}
  fields = checkpoints.make_config(model, params, (1, 106))
  assert fields['eos_token_id'] == [1, 106]
  assert fields['dtype'] == 'bfloat16'
  again = small.built(json.loads(json.dumps(fields)))
  assert again == dataclasses.replace(own, **gates)
