"""Tests of reading and writing checkpoints, and of their formats."""

import dataclasses
import json
import pathlib
import shutil
import types

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from safetensors.numpy import load_file, save_file
from small import FIXTURES, dtypes, load, same, stored

import cascades
from cascades.models import (
  checkpoints,
  gemma_library,
  language,
  param_mapping,
  tensor_files,
)

TABLE = param_mapping.TABLE_TENSOR
FULL, SLIDING = 'full_attention', 'sliding_attention'


def read_config(folder: str) -> dict:
  return small.read_json(FIXTURES / folder / 'config.json')


@pytest.fixture
def copied(tmp_path):
  """Copies a fixture, which a test then changes."""
  return lambda folder: shutil.copytree(FIXTURES / folder, tmp_path / 'model')


# --- Reading what transformers wrote ---


@pytest.mark.parametrize(
  'root', ['model.language_model.', 'language_model.model.']
)
def test_the_text_part_of_a_multimodal_checkpoint(copied, root):
  there, changed = copied('hf_gemma3'), {}
  for name, tensor in stored(there).items():
    changed |= {name: None, name.replace('model.', root, 1): tensor}
  vision = root.replace('language_model', 'vision_tower')
  changed[vision + 'embeddings.weight'] = np.ones((3, 3), np.float32)
  small.rewrite(there, tensors=changed)
  whole = {'model_type': 'gemma3', 'text_config': read_config('hf_gemma3')}
  (there / 'config.json').write_text(json.dumps(whole))
  read = checkpoints.load_model(str(there)).unpack()
  assert read.model == load('hf_gemma3').model
  same(read.params, load('hf_gemma3').params)


# --- As another dtype ---


def as_bfloat16(params):
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)


@pytest.mark.parametrize('name', ['tiny-drafter', FIXTURES / 'hf_gemma2'])
def test_parameters_become_another_dtype_as_they_are_read(name):
  whole, read = (checkpoints.load_model(name, x) for x in (None, 'bfloat16'))
  assert read.model == whole.model
  same(read.params, as_bfloat16(whole.params))
  assert dtypes(read.params) == {'bfloat16'}
  for option, call in (
    ('dtype', lambda: checkpoints.load_model(name, 'int4')),
    ('stored', lambda: checkpoints.save_model('x', whole, stored='int4')),
  ):
    assert "must be one of bfloat16, float32, int8, got 'int4'" in (
      conftest.refused(option, call)
    )


@pytest.mark.parametrize('kept', ['float32', 'bfloat16'])
def test_config_json_says_what_parameters_become(tmp_path, kept):
  checkpoints.save_model(tmp_path, load('tiny-drafter'), stored=kept)
  half = 'bfloat16'
  for said, want in (
    ({'dtype': half}, half),
    ({'torch_dtype': half}, half),
    # One that is null is none.
    ({'dtype': None, 'torch_dtype': half}, half),
    # What neither names nor allows stays as it is stored.
    *(({name: 'float16'}, kept) for name in ('dtype', 'torch_dtype')),
    ({}, kept),
  ):
    small.rewrite(tmp_path, {'dtype': ..., 'torch_dtype': ...} | said)
    assert dtypes(checkpoints.load_model(tmp_path).params) == {want}, said


# --- Orbax ---


def flat(params):
  """A tree as gemma's downloads have it: half of its levels in the names."""
  out = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    *names, last = ['transformer', *(key.key for key in path)]
    if 'mlp' in names:
      names, last = [*names, last], 'w'
    out.setdefault('/'.join(names), {})[last] = leaf
  return out


@pytest.fixture(scope='module')
def downloads(tmp_path_factory):
  """Folders as downloads are: the checkpoint, and its tokenizer beside it."""
  _, params, tokenizer = load('hf_gemma3')
  save = gemma_library.import_gemma().ckpts.save_params
  from gemma.gm.ckpts import _checkpoint

  root = tmp_path_factory.mktemp('downloads')
  ones = jnp.ones((2, 3), jnp.bfloat16)
  pictures, sounds = 'mm_input_projection', 'audio_input_projection'
  embedder = params['embedder'] | {x: {'w': ones} for x in (pictures, sounds)}
  encoders = {x: {'w': ones} for x in ('vision_encoder', 'audio_encoder')}
  layouts = dict(
    nested=params,
    flat=flat(params),
    stacked=_checkpoint._nested_to_stacked(dict(params), 2),
    images=params | {'embedder': embedder} | encoders,
    training=dict(params=params, opt_state={'w': ones}, step=3, collections={}),
  )
  for name, tree in layouts.items():
    folder = root / name
    save(tree, folder / 'gemma3-tiny-it', wait_until_finished=True)
    (folder / 'tokenizer.model').write_bytes(tokenizer.proto)
    shutil.copy(FIXTURES / 'hf_gemma3' / 'config.json', folder)
  return root


@pytest.mark.parametrize('layout', ['flat', 'stacked', 'images', 'training'])
def test_an_orbax_checkpoint_is_the_model_that_was_saved(downloads, layout):
  folder, want = downloads / layout, load('hf_gemma3').pack()
  (folder / 'generation_config.json').write_text('{"suppress_tokens": [6]}')
  (folder / 'chat_template.jinja').write_text('{{ bos_token }}')
  read = checkpoints.load_model(folder / 'gemma3-tiny-it')
  assert (read.model, read.tokenizer) == (want.model, want.tokenizer)
  assert read.tokenizer.suppress_tokens == (6,)
  assert read.tokenizer.chat_template == '{{ bos_token }}'
  same(read.params, want.params)
  read = checkpoints.load_model(folder / 'gemma3-tiny-it', 'bfloat16')
  assert dtypes(read.params) == {'bfloat16'}
  same(read.params, as_bfloat16(want.params))


@pytest.fixture
def catalogue(monkeypatch):
  """Replaces gemma's checkpoints by two, the second in the downloads."""
  found = {
    f'{name}-it': language.from_config(read_config(folder))
    for name, folder in (
      ('gemma2-tiny', 'hf_gemma2'),
      ('gemma3-tiny', 'hf_gemma3'),
    )
  }
  file = str(FIXTURES / 'hf_gemma3' / 'tokenizer.model')
  monkeypatch.setattr(gemma_library, 'gemma_checkpoints', lambda: dict(found))
  monkeypatch.setattr(language, 'from_gemma', lambda name: (found[name], file))
  return found


@pytest.mark.parametrize('said', ['gemma3-tiny', 'gemma3-tiny-it'])
def test_an_architecture_is_named(downloads, catalogue, tmp_path, said):
  # Without a config.json, and without a tokenizer.
  shutil.copytree(downloads / 'flat' / 'gemma3-tiny-it', tmp_path / 'it')
  read = checkpoints.load_model(f'{said}:{tmp_path / "it"}').unpack()
  want = load('hf_gemma3')
  assert (read.model, read.tokenizer) == (want.model, want.tokenizer)
  same(read.params, want.params)


def test_orbax_folders_that_will_not_do(downloads, catalogue, tmp_path):
  folder = tmp_path / 'it'
  shutil.copytree(downloads / 'nested' / 'gemma3-tiny-it', folder)
  for name, said in (
    (f'gemma2-tiny:{folder}', 'embedder/input_embedding is not as its'),
    (f'gemma4-tiny:{folder}', "'gemma4-tiny' is not an architecture of"),
    (f'gemma3-tiny:{FIXTURES / "hf_gemma3"}', 'precedes an Orbax folder only'),
    (folder, 'has no config.json'),
    (downloads / 'nested', 'is not a name, file or folder of the formats'),
  ):
    assert said in conftest.refused('model', checkpoints.load_model, name)
  (folder / '_METADATA').write_text('{')
  name = f'gemma3-tiny:{folder}'
  message = conftest.refused('model', checkpoints.load_model, name)
  assert 'cannot be read' in message


# --- Folders that cannot be read ---


def _read_all(folder):
  """All tensors that a folder's model is made of."""
  places = tensor_files.open_folder(folder)
  return {name: np.asarray(rows) for name, rows in places.items()}


def test_the_index_says_which_copy_of_a_tensor_is_read(copied):
  shards, norm = copied('hf_gemma2'), 'model.norm.weight'
  want = _read_all(shards)
  index = small.read_json(shards / tensor_files.INDEX)['weight_map']
  for shard in {*index.values()} - {index[norm]}:
    at = shards / shard
    save_file(load_file(at) | {norm: np.zeros_like(want[norm])}, at)
  # And files that it does not list are not looked at.
  for name in 'zzz.safetensors', 'model.safetensors':
    save_file({norm: np.zeros(3)}, shards / name)
  same(_read_all(shards), want)
  # Nor is a tensor that it does not map.
  fields = {'weight_map': {x: f for x, f in index.items() if x != norm}}
  (shards / tensor_files.INDEX).write_text(json.dumps(fields))
  assert norm not in tensor_files.open_folder(shards)


@pytest.mark.parametrize(
  ('prefix', 'declared'),
  [('', True), ('model.', ...), ('language_model.', True)],
)
def test_an_output_head_that_is_no_table_is_refused(
  copied, monkeypatch, declared, prefix
):
  folder, table = copied('hf_gemma3'), stored(FIXTURES / 'hf_gemma3')[TABLE]
  monkeypatch.setattr(checkpoints, '_HEAD_ROWS', 5)
  name = f'{prefix}lm_head.weight'
  small.rewrite(folder, {'tie_word_embeddings': declared}, {name: table})
  checkpoints.load_model(folder)
  half = table.astype(np.float16)
  changed = np.concatenate([table[:-1], table[-1:] + 1])
  for head, said in (
    *((x, f'differs from {TABLE}, and') for x in (changed, half)),
    *((x, 'has the shape') for x in (table[:-1], table[:, 0])),
  ):
    small.rewrite(folder, tensors={name: head})
    message = conftest.refused('model', checkpoints.load_model, folder)
    assert f'lm_head.weight {said}' in message


# --- config.json ---


def built(config):
  """Returns the gemma configuration for a config.json."""
  return language.from_config(config).module.config


def test_a_multimodal_config_may_say_little_of_its_text_part():
  for text in {}, {'model_type': 'gemma3_text'}, None:
    whole = {'model_type': 'gemma3', 'text_config': text, 'vision_config': {}}
    assert built(whole) == built({'model_type': 'gemma3_text'})


_LINEAR = {'rope_type': 'linear', 'factor': 2.0}
_OF_4 = {'rope_local_base_freq': 100.0, 'rope_theta': 1000.0}


def test_positions_turn_as_a_config_says():
  three, two = 'gemma3_text', 'gemma2'
  for family, fields, want in (
    (three, {}, (10_000, 1, 1_000_000, 1)),
    (three, {'rope_scaling': None}, (10_000, 1, 1_000_000, 1)),
    # Older configs say `type`; and 4 scales no local layer.
    (
      three,
      _OF_4 | {'rope_scaling': {'type': 'linear', 'factor': 4.0}},
      (100, 1, 1000, 4),
    ),
    *(
      (three, {'rope_parameters': fields}, (theta, 1, 1_000_000, 1))
      for fields, theta in (
        ({SLIDING: {'rope_theta': 500.0}}, 500),
        ({FULL: {'rope_type': 'default', 'factor': 8.0}}, 10_000),
      )
    ),
    # A Gemma 2 turns all layers alike.
    (two, {'rope_theta': 10_000.0}, (10_000, 1) * 2),
    (two, {'rope_theta': 500.0, 'rope_scaling': _LINEAR}, (500, 2) * 2),
    (two, {'rope_parameters': _LINEAR | {'rope_theta': 500.0}}, (500, 2) * 2),
  ):
    config = built({'model_type': family, **fields})
    found = (
      *(config.local_base_frequency, config.local_scale_factor),
      *(config.global_base_frequency, config.global_scale_factor),
    )
    assert found == want, fields


def test_layer_types_from_a_pattern_or_spelled_out():
  three = {'model_type': 'gemma3_text', 'sliding_window_pattern': 3}
  spelled = {'layer_types': [FULL] * 6 + [SLIDING]}
  for fields, want in (
    ({'model_type': 'gemma2'}, 'LGLGLGL'),
    ({'model_type': 'gemma3_text'}, 'LLLLLGL'),
    (three, 'LLGLLGL'),
    (three | spelled, 'GGGGGGL'),
    ({'model_type': 'gemma2'} | spelled, 'GGGGGGL'),
  ):
    types = built({'num_hidden_layers': 7} | fields).attention_types
    assert ''.join(kind.name[0] for kind in types) == want


def test_heads_of_full_layers_by_either_name():
  config = read_config('hf_gemma4_dense')
  named = {k: v for k, v in config.items() if k != 'per_layer_config'}
  named |= {'global_head_dim': 16, 'num_global_key_value_heads': 1}
  assert built(named) == built(config)
  assert built(config).global_key_size == 16
  assert built(config).num_global_kv_heads == 1


@pytest.mark.parametrize('folder', ['hf_gemma3n', 'hf_gemma4_shared'])
def test_keys_of_layers_that_own_none_are_not_looked_at(folder, copied):
  # As Google's own folders hold them.
  there, attention = copied(folder), 'model.layers.{}.self_attn.{}.weight'
  tensors = stored(there)
  more = {}
  for name in ('k_proj', 'v_proj', 'k_norm'):
    assert attention.format(5, name) not in tensors
    like = tensors[attention.format(3, name)]
    more[attention.format(5, name)] = np.full_like(like, 7)
  small.rewrite(there, tensors=more)
  model, params, _ = checkpoints.load_model(there).unpack()
  assert model == load(folder).model
  same(params, load(folder).params)


def test_an_unknown_name_is_answered_with_the_list(tmp_path):
  for name in ('gemma2_2b_it', str(tmp_path / 'nowhere')):
    said = conftest.refused('model', checkpoints.load_model, name)
    assert f"'{name}' is not a name, file or folder of the formats" in said
    for name in [*checkpoints.BUNDLED, *gemma_library.gemma_checkpoints()]:
      assert name in said.split('choose from')[1]


def test_a_name_is_fetched_by_gemma(monkeypatch):
  proto = (FIXTURES / 'hf_gemma2' / 'tokenizer.model').read_bytes()
  calls, name = [], 'gemma2-2b-it'

  def path(file):
    calls.append(file)
    return types.SimpleNamespace(read_bytes=lambda: proto)

  def restore_layers(path, structs):
    calls.append((path, structs))
    yield 'final_norm', {'scale': jnp.ones(3, jnp.bfloat16)}

  own, tokenizer_file = language.from_gemma(name)
  shapes = own.param_shapes()
  with_sound = shapes | {'audio_encoder': {}}
  monkeypatch.setattr(checkpoints.epath, 'Path', path)
  monkeypatch.setattr(gemma_library, 'orbax_shapes', lambda path: with_sound)
  monkeypatch.setattr(gemma_library, 'restore_layers', restore_layers)
  model, params, tokenizer = checkpoints.load_model(name, 'bfloat16').unpack()
  file, (path, wanted) = calls
  assert file == tokenizer_file
  assert path.endswith(f'/{name}')
  # Read as it is to be, and where.
  assert wanted.keys() == shapes.keys()
  wanted, shape = (x['final_norm']['scale'] for x in (wanted, shapes))
  assert (wanted.shape, wanted.dtype) == (shape.shape, jnp.bfloat16)
  assert wanted.sharding.device_set == {jax.local_devices()[0]}
  assert model == dataclasses.replace(own, vocab_size=64)
  np.testing.assert_array_equal(params['final_norm']['scale'], 1)
  assert tokenizer.proto == proto

  def refuse(*args):
    raise OSError('no route to host\nand a long trace')

  for part in (checkpoints.epath, 'Path'), (gemma_library, 'orbax_shapes'):
    monkeypatch.setattr(*part, refuse)
    message = conftest.refused('model', checkpoints.load_model, name)
    assert f'{name} cannot be read (no route to host); fetch' in message


# --- Formats ---

TINY = checkpoints.ASSETS / 'tiny-drafter'


def test_a_registered_format_is_loaded_where_none_of_the_library_fits(
  tmp_path, monkeypatch
):
  def open_toy(name):
    is_toy = (pathlib.Path(name) / 'toy').is_file()
    return checkpoints.open_checkpoint(TINY) if is_toy else None

  monkeypatch.setitem(checkpoints.FORMATS, 'toy', open_toy)
  message = conftest.refused('model', checkpoints.load_model, tmp_path)
  assert ', '.join(checkpoints.FORMATS) in message
  (tmp_path / 'toy').touch()
  assert cascades.load_model(tmp_path).tokenizer == load(TINY).tokenizer
  (tmp_path / '_METADATA').touch()
  message = conftest.refused('model', checkpoints.load_model, tmp_path)
  assert 'has no config.json' in message
  (tmp_path / 'model.safetensors').write_bytes(b'')
  for name in 'config.json', 'tokenizer.model':
    shutil.copy(TINY / name, tmp_path)
  message = conftest.refused('model', checkpoints.load_model, tmp_path)
  assert 'model.safetensors is damaged' in message


def test_a_name_or_path_has_a_format(monkeypatch):
  monkeypatch.chdir(checkpoints.ASSETS)
  for name, format_name in (
    ('tiny-drafter', 'bundled'),
    ('gemma3-270m', 'bundled'),
    ('gemma2-2b-it', 'orbax'),
    (TINY, 'huggingface'),
    (str(TINY), 'huggingface'),
    (checkpoints.ASSETS / 'gemma3-270m-multi30k-de-en', 'huggingface'),
    # A bundled name is no path.
    ('./tiny-drafter', 'huggingface'),
    (pathlib.Path('tiny-drafter'), 'huggingface'),
  ):
    assert checkpoints.find_format(name) == format_name
