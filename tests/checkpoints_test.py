"""Tests of reading and writing checkpoints.

The fixtures were made by transformers itself (see make_hf_fixtures.py there),
so that its weights, names, config.json and logits are the reference here.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import shutil
import socket
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from cascades import decoding
from cascades.methods import processing
from cascades.models import (
  checkpoints,
  families,
  huggingface,
  language,
  tokenizers,
)

FIXTURES = pathlib.Path(__file__).parent / 'fixtures'
CLASSIC = ('hf_gemma2', 'hf_gemma3')
FOUR = ('hf_gemma4_shared', 'hf_gemma4_dense', 'hf_gemma4_experts')
FOLDERS = (*CLASSIC, 'hf_gemma3n', *FOUR)
FULL, SLIDING = 'full_attention', 'sliding_attention'


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
  def refuse(*args):
    raise AssertionError('a test reached for the network')

  monkeypatch.setattr(socket.socket, 'connect', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)


@functools.cache
def load(folder: str) -> checkpoints.Checkpoint:
  return checkpoints.load_model(FIXTURES / folder).unpacked()


def read_config(folder: str) -> dict:
  return json.loads((FIXTURES / folder / 'config.json').read_text())


def expected(folder: str) -> tuple[np.ndarray, np.ndarray]:
  """Token ids, and transformers' logits after each."""
  with np.load(FIXTURES / folder / 'expected.npz', allow_pickle=False) as file:
    return file['tokens'], file['logits']


def uncached(model, params, tokens):
  positions = jnp.arange(len(tokens))
  mask = positions[None] <= positions[:, None]
  return model(params, jnp.asarray(tokens), positions, mask)[0]


def stored(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Every tensor of a folder."""
  tensors = {}
  for file in folder.glob('*.safetensors'):
    with safe_open(file, framework='numpy') as handle:
      tensors |= {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
  return tensors


def paths(tree) -> dict[tuple[str, ...], tuple[int, ...]]:
  """Leaf path to shape."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {tuple(k.key for k in path): leaf.shape for path, leaf in flat}


# --- Reading what transformers wrote ---


@pytest.mark.parametrize('folder', FOLDERS)
def test_logits_equal_those_of_transformers(folder):
  model, params, tokenizer = load(folder)
  tokens, logits = expected(folder)
  window = model.module.config.sliding_window_size
  assert len(tokens) > 3 * window
  assert tokenizer.vocab_size <= model.vocab_size == logits.shape[-1]
  ours = uncached(model, params, tokens)
  assert ours.dtype == jnp.float32
  np.testing.assert_allclose(ours, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize('folder', FOLDERS)
@pytest.mark.parametrize('block', [1, 5])
def test_logits_through_the_cache_equal_those_of_transformers(folder, block):
  model, params, _ = load(folder)
  tokens, logits = expected(folder)
  slots = len(tokens) + 3
  step = jax.jit(model)
  cache = model.init_cache(params, slots)
  ours = []
  for start in range(0, len(tokens), block):
    positions = start + jnp.arange(block)
    mask = jnp.arange(slots)[None] <= positions[:, None]
    chunk = jnp.asarray(tokens[start : start + block])
    out, cache = step(params, chunk, positions, mask, cache)
    ours.append(out)
  np.testing.assert_allclose(np.concatenate(ours), logits, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('window', [6, 512])
def test_a_text_beyond_the_window_equals_that_of_transformers(window):
  # It is also longer than max_position_embeddings, which bounds nothing.
  config = read_config('hf_gemma3')
  assert config['query_pre_attn_scalar'] != config['head_dim']
  with np.load(FIXTURES / 'hf_gemma3/long.npz') as file:
    tokens, positions = file['tokens'], file['positions']
    logits, greedy, drawn_from = (
      file[f'{name}_{window}'] for name in ('logits', 'greedy', 'drawn_from')
    )
  model = language.from_config(config | {'sliding_window': window})
  model = dataclasses.replace(model, vocab_size=logits.shape[1])
  params = load('hf_gemma3').params
  at_once = uncached(model, params, tokens)[positions]
  np.testing.assert_allclose(at_once, logits, rtol=0, atol=1e-4)

  # And token by token, beyond the window too, on to the text that follows.
  read = jax.jit(decoding.read, static_argnames='model')
  cache = model.init_cache(params, len(tokens) + len(greedy))
  written = jnp.asarray(np.append(tokens, greedy[:-1]))
  first = 500
  got, cache = read(model, params, cache, written[:first], jnp.int32(0))
  found = list(got)
  for i in range(first, len(written)):
    got, cache = read(model, params, cache, written[i : i + 1], jnp.int32(i))
    found.append(got[0])
  found = np.array(found)
  np.testing.assert_allclose(found[positions], logits, rtol=0, atol=1e-4)
  last = jnp.asarray(found[len(tokens) - 1 :])
  np.testing.assert_array_equal(last.argmax(-1), greedy)
  warm = processing.Processing(temperature=np.float32(0.7))
  probs = jax.vmap(processing.probabilities, (0, None))(last, warm)
  np.testing.assert_allclose(probs, drawn_from, rtol=0, atol=2e-5)


def _rope_4(**fields):
  """In the flat fields of transformers 4, which reach the model as well."""
  return {'rope_parameters': None, **fields}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('folder', 'changes'),
  [
    ('hf_gemma2', {'attn_logit_softcapping': None}),
    ('hf_gemma2', {'final_logit_softcapping': None}),
    ('hf_gemma2', {'sliding_window': 5}),
    ('hf_gemma2', {'query_pre_attn_scalar': 8}),
    ('hf_gemma2', {'layer_types': [FULL, FULL, SLIDING]}),
    ('hf_gemma2', _rope_4(rope_theta=1000.0)),
    ('hf_gemma3', {'sliding_window': 5}),
    ('hf_gemma3n', {'sliding_window': 5}),
    ('hf_gemma3n', {'activation_sparsity_pattern': [0.0] * 6}),
    ('hf_gemma3n', {'final_logit_softcapping': None}),
    ('hf_gemma4_shared', {'sliding_window': 5}),
    ('hf_gemma4_dense', {'rope_parameters': None}),
    ('hf_gemma4_experts', {'top_k_experts': 3}),
    ('hf_gemma3', {'query_pre_attn_scalar': 8}),
    ('hf_gemma3', _rope_4(rope_theta=1000.0, rope_local_base_freq=100.0)),
    (
      'hf_gemma3',
      _rope_4(
        rope_theta=1000.0,
        rope_local_base_freq=1000.0,
        rope_scaling={'rope_type': 'linear', 'factor': 8.0},
      ),
    ),
  ],
)
def test_the_reference_notices_a_misread_field(folder, changes):
  # Without this, equality above could hold because nothing matters.
  model = language.from_config(read_config(folder) | changes)
  tokens, logits = expected(folder)
  off = np.abs(uncached(model, load(folder).params, tokens) - logits).max()
  assert off > 1e-2


@pytest.mark.parametrize('folder', CLASSIC)
def test_a_key_value_head_for_every_query_head(folder, tmp_path):
  # Heads that are shared, spelled out: the same model in gemma's other layout.
  config, tensors = read_config(folder), stored(FIXTURES / folder)
  heads, dim = config['num_attention_heads'], config['head_dim']
  shared = heads // config['num_key_value_heads']
  for name, tensor in tensors.items():
    if 'k_proj' in name or 'v_proj' in name:
      by_head = tensor.reshape(-1, dim, tensor.shape[-1])
      tensors[name] = by_head.repeat(shared, 0).reshape(heads * dim, -1)
  save_file(tensors, tmp_path / 'model.safetensors')
  shutil.copy(FIXTURES / folder / 'tokenizer.model', tmp_path)
  config |= {'num_key_value_heads': heads}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  model, params, _ = checkpoints.load_model(tmp_path)
  assert 'qkv_einsum' in params['layer_0']['attn']
  tokens, logits = expected(folder)
  ours = uncached(model, params, tokens)
  np.testing.assert_allclose(ours, logits, rtol=0, atol=1e-4)


def test_reading_needs_no_torch(monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  params = checkpoints.load_model(FIXTURES / 'hf_gemma3').params
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
  'root', ['model.language_model.', 'language_model.model.']
)
def test_the_text_part_of_a_multimodal_checkpoint(tmp_path, root):
  source = FIXTURES / 'hf_gemma3'
  tensors = {
    name.replace('model.', root, 1): tensor
    for name, tensor in stored(source).items()
  }
  vision = root.replace('language_model', 'vision_tower')
  tensors[vision + 'embeddings.weight'] = np.ones((3, 3), np.float32)
  save_file(tensors, tmp_path / 'model.safetensors')
  shutil.copy(source / 'tokenizer.model', tmp_path)
  whole = {'model_type': 'gemma3', 'text_config': read_config('hf_gemma3')}
  (tmp_path / 'config.json').write_text(json.dumps(whole))
  read = checkpoints.load_model(str(tmp_path)).unpacked()
  assert read.model == load('hf_gemma3').model
  jax.tree.map(
    np.testing.assert_array_equal, read.params, load('hf_gemma3').params
  )


@pytest.mark.parametrize('folder', ['hf_gemma2', 'hf_gemma3', 'shared'])
def test_packed_parameters_are_the_same_model(folder):
  if folder == 'shared':
    # As many heads for keys as for queries, and the gate by columns.
    model = own_model('gemma2-2b')[0]
    config = dataclasses.replace(
      model.module.config,
      num_embed=64,
      embed_dim=32,
      hidden_dim=48,
      num_heads=2,
      num_kv_heads=2,
      head_dim=16,
      attention_types=model.module.config.attention_types[:2],
      transpose_gating_einsum=False,
    )
    module = dataclasses.replace(model.module, config=config, dtype=jnp.float32)
    model = language.LanguageModel(module, 64)
    plain = checkpoints.Checkpoint(
      model, model.init_params(jax.random.key(0)), None
    )
  else:
    plain = load(folder)
  packed = plain.packed()
  assert packed.packed() is packed
  moved = [
    a.shape != b.shape
    for a, b in zip(
      *map(jax.tree.leaves, (plain.params, packed.params)), strict=True
    )
  ]
  assert sum(moved) > 4
  jax.tree.map(
    np.testing.assert_array_equal, packed.unpacked().params, plain.params
  )
  # Panels are multiplied in another order of additions.
  tokens = jnp.arange(12)
  np.testing.assert_allclose(
    uncached(packed.model, packed.params, tokens),
    uncached(plain.model, plain.params, tokens),
    rtol=0,
    atol=1e-5,
  )


# --- Writing ---


@pytest.mark.parametrize('folder', FOLDERS)
def test_written_tensors_are_those_that_transformers_wrote(folder, tmp_path):
  _, params, tokenizer = load(folder)
  huggingface.save(tmp_path, read_config(folder), params, tokenizer)
  theirs, ours = stored(FIXTURES / folder), stored(tmp_path)
  assert ours.keys() == theirs.keys()
  for name, tensor in theirs.items():
    assert ours[name].dtype == tensor.dtype
    np.testing.assert_array_equal(ours[name], tensor, err_msg=name)
  assert json.loads((tmp_path / 'config.json').read_text()) == read_config(
    folder
  )
  modes = {file.stat().st_mode for file in tmp_path.iterdir()}
  assert len(modes) == 1, 'one file is more private than the others'


@pytest.mark.parametrize('family', ['gemma2', 'gemma3_text'])
@pytest.mark.parametrize(
  ('heads', 'kv_heads'), [(4, 1), (4, 2), (2, 2)], ids=['mqa', 'gqa', 'mha']
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_round_trip_is_exact(family, heads, kv_heads, dtype, tmp_path):
  config = dict(
    model_type=family,
    vocab_size=70,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=heads,
    num_key_value_heads=kv_heads,
    head_dim=6,
    query_pre_attn_scalar=6,
    sliding_window=4,
  )
  model = language.from_config(config)
  shapes = model.param_shapes()
  random = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), dtype), shapes
  )
  tokenizer = load('hf_gemma2').tokenizer
  folder = tmp_path / 'not' / 'there yet'
  huggingface.save(folder, config, params, tokenizer)
  read = checkpoints.load_model(folder).unpacked()
  # Rows that pad the table stand for no token.
  assert read.model == dataclasses.replace(model, vocab_size=64)
  assert read.tokenizer == tokenizer
  assert jax.tree.structure(read.params) == jax.tree.structure(shapes)
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    got = functools.reduce(lambda tree, key: tree[key.key], path, read.params)
    assert got.dtype == leaf.dtype
    np.testing.assert_array_equal(got, leaf, err_msg=str(path))
  attn = read.params['layer_0']['attn']
  assert ('qkv_einsum' in attn) == (heads == kv_heads)


# --- As another dtype ---


@pytest.mark.parametrize('name', ['tiny-drafter', FIXTURES / 'hf_gemma2'])
def test_parameters_become_another_dtype_as_they_are_read(name):
  stored, read = (checkpoints.load_model(name, x) for x in (None, 'bfloat16'))
  assert read.model == stored.model
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x.astype(jnp.bfloat16), y),
    stored.params,
    read.params,
  )
  dtypes = {x.dtype for x in jax.tree.leaves(read.params)}
  assert dtypes == {jnp.dtype('bfloat16')}
  model, shapes = checkpoints.describe(name, 'bfloat16')
  assert model == read.model
  assert jax.tree.map(lambda x: (x.shape, x.dtype), read.params) == (
    jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
  )


def test_tensors_that_are_rounded_are_read_as_what_they_were(tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'float32')
  rounded = jax.tree.map(
    lambda x: (x * 1.001).astype(jnp.bfloat16).astype(jnp.float32),
    whole.params,
  )
  params = jax.tree.map(lambda x: x * 1.001, whole.params)
  checkpoints.save_model(
    tmp_path, whole._replace(params=params), stored='bfloat16'
  )
  with safe_open(tmp_path / 'model.safetensors', 'numpy') as file:
    assert {file.get_slice(k).get_dtype() for k in file.keys()} == {'BF16'}  # noqa: SIM118
  read = checkpoints.load_model(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, read.params, rounded)
  _, shapes = checkpoints.describe(tmp_path)
  for tree in (read.params, shapes):
    assert {x.dtype for x in jax.tree.leaves(tree)} == {np.dtype('float32')}
  with pytest.raises(ValueError, match=r"^dtype: 'int8' will not do; give"):
    checkpoints.save_model(tmp_path, whole, stored='int8')


@pytest.mark.parametrize('said', ['dtype', 'torch_dtype'])
@pytest.mark.parametrize('named', ['bfloat16', 'float16', None])
def test_config_json_says_what_parameters_become(tmp_path, said, named):
  checkpoints.save_model(tmp_path, checkpoints.load_model('tiny-drafter'))
  path = tmp_path / 'config.json'
  fields = json.loads(path.read_text())
  del fields['dtype'], fields['torch_dtype']
  path.write_text(json.dumps(fields | ({said: named} if named else {})))
  # What neither names nor allows stays as it is stored.
  want = jnp.bfloat16 if named == 'bfloat16' else np.float32
  read = checkpoints.load_model(tmp_path)
  assert {x.dtype for x in jax.tree.leaves(read.params)} == {jnp.dtype(want)}


def test_a_dtype_that_is_null_is_none(tmp_path):
  checkpoints.save_model(tmp_path, checkpoints.load_model('tiny-drafter'))
  path = tmp_path / 'config.json'
  fields = json.loads(path.read_text())
  path.write_text(
    json.dumps(fields | {'dtype': None, 'torch_dtype': 'bfloat16'})
  )
  read = checkpoints.load_model(tmp_path)
  assert {x.dtype for x in jax.tree.leaves(read.params)} == {
    jnp.dtype(jnp.bfloat16)
  }


def test_there_are_two_dtypes():
  for load in checkpoints.load_model, checkpoints.describe:
    with pytest.raises(ValueError, match=r"^dtype: 'int8' will not do; give"):
      load('tiny-drafter', 'int8')


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
  save = language.import_gemma().ckpts.save_params
  root = tmp_path_factory.mktemp('downloads')
  for name, tree in (('nested', params), ('flat', flat(params))):
    folder = root / name
    save(tree, folder / 'gemma3-tiny-it', wait_until_finished=True)
    (folder / 'tokenizer.model').write_bytes(tokenizer.proto)
    shutil.copy(FIXTURES / 'hf_gemma3' / 'config.json', folder)
  return root


@pytest.mark.parametrize('layout', ['nested', 'flat'])
@pytest.mark.parametrize('inner', ['', 'gemma3-tiny-it'])
def test_an_orbax_checkpoint_is_the_model_that_was_saved(
  downloads, layout, inner
):
  folder = downloads / layout / inner
  read, want = checkpoints.load_model(folder), load('hf_gemma3').packed()
  assert (read.model, read.tokenizer) == (want.model, want.tokenizer)
  jax.tree.map(np.testing.assert_array_equal, read.params, want.params)
  model, shapes = checkpoints.describe(folder)
  assert model == read.model
  assert paths(shapes) == paths(read.params)


def test_an_orbax_checkpoint_becomes_another_dtype(downloads):
  read = checkpoints.load_model(downloads / 'flat', 'bfloat16').unpacked()
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x.astype(jnp.bfloat16), y),
    load('hf_gemma3').params,
    read.params,
  )
  assert {x.dtype.name for x in jax.tree.leaves(read.params)} == {'bfloat16'}


@pytest.fixture
def catalogue(monkeypatch):
  """What gemma knows: two models, of which the second is the downloads'."""
  found = {
    f'{name}-it': language.from_config(read_config(folder))
    for name, folder in zip(
      ('gemma2-tiny', 'gemma3-tiny'), CLASSIC, strict=True
    )
  }
  file = str(FIXTURES / 'hf_gemma3' / 'tokenizer.model')
  monkeypatch.setattr(language, 'gemma_checkpoints', lambda: dict(found))
  monkeypatch.setattr(language, 'from_gemma', lambda name: (found[name], file))
  return found


@pytest.mark.parametrize('said', ['', 'gemma3-tiny:', 'gemma3-tiny-it:'])
def test_an_architecture_is_found_by_its_size_or_by_its_name(
  downloads, catalogue, tmp_path, said
):
  # Without a config.json, and without a tokenizer.
  shutil.copytree(downloads / 'flat' / 'gemma3-tiny-it', tmp_path / 'it')
  read = checkpoints.load_model(f'{said}{tmp_path}').unpacked()
  want = load('hf_gemma3')
  assert read.model == want.model
  assert read.tokenizer == want.tokenizer
  jax.tree.map(np.testing.assert_array_equal, read.params, want.params)


def test_orbax_folders_that_will_not_do(downloads, catalogue, tmp_path):
  source = downloads / 'nested' / 'gemma3-tiny-it'

  def refused(name, said):
    for load in checkpoints.load_model, checkpoints.describe:
      with pytest.raises(ValueError, match=r'^model: ') as error:
        load(name)
      assert said in str(error.value)
      assert '\n' not in str(error.value)
      assert str(error.value).endswith('.')

  folder = tmp_path / 'one'
  shutil.copytree(source, folder / 'it')
  refused(
    f'gemma2-tiny:{folder}', 'embedder/input_embedding has the shape (64, 24)'
  )
  refused(f'gemma4-tiny:{folder}', "'gemma4-tiny' is no folder and no known")
  refused(f'gemma3-tiny:{FIXTURES / "hf_gemma3"}', 'says itself what it is')
  del catalogue['gemma3-tiny-it']
  refused(folder, 'has 4 layers of width 24, as no model')
  shutil.copytree(source, folder / 'other')
  refused(folder, 'holds several checkpoints (it, other)')
  (folder / 'it' / '_METADATA').write_text('{')
  refused(folder / 'it', 'is no checkpoint that Orbax can read')


def test_every_size_of_gemmas_is_told_from_the_others():
  for size, (layers, width, _) in OWN.items():
    assert language.find_gemma(layers, width).startswith(f'{size}-')
  assert language.find_gemma(26, 26) is None


# --- Folders that cannot be read ---


def _cut(file: pathlib.Path, keep: int) -> None:
  file.write_bytes(file.read_bytes()[:keep])


def _configure(**changes):
  def change(folder):
    file = folder / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

  return change


def _retensor(name, change):
  """Replaces a tensor by change(tensor); drops it where that is None."""

  def apply(folder):
    tensors = stored(folder)
    tensor = tensors.pop(name)
    if (new := change(tensor)) is not None:
      tensors[name] = np.ascontiguousarray(new)
    for file in folder.glob('*.safetensors*'):
      file.unlink()
    save_file(tensors, folder / 'model.safetensors')

  return apply


def _each(pattern, do):
  return lambda folder: [do(file) for file in folder.glob(pattern)]


LAYER = 'model.layers.1'
SHARD = 'model-00002-of-00004.safetensors'
DAMAGE = {
  'no config': (_each('config.json', pathlib.Path.unlink), 'no config.json'),
  'cut config': (
    _each('config.json', lambda f: _cut(f, 100)),
    'config.json is damaged',
  ),
  'binary config': (
    _each('config.json', lambda f: f.write_bytes(b'\xff\xfe\x00')),
    'config.json is damaged',
  ),
  'list config': (
    _each('config.json', lambda f: f.write_text('[]')),
    'config.json is damaged',
  ),
  'other family': (_configure(model_type='llama'), "model_type 'llama'"),
  'no family': (_configure(model_type=None), 'model_type None'),
  'untied': (_configure(tie_word_embeddings=False), 'tie_word_embeddings'),
  'smaller vocabulary': (_configure(vocab_size=60), 'tokenizer.model has 64'),
  'wrong width': (
    _configure(hidden_size=36, query_pre_attn_scalar=12),
    'model.embed_tokens.weight has the shape (64, 32)',
  ),
  'cut index': (
    _each('*.index.json', lambda f: _cut(f, 900)),
    'model.safetensors.index.json is damaged',
  ),
  'index of nothing': (
    _each('*.index.json', lambda f: f.write_text('{}')),
    'model.safetensors.index.json is damaged',
  ),
  'no weights': (
    _each('*.safetensors', pathlib.Path.unlink),
    'no *.safetensors file',
  ),
  'no shard': (
    _each(SHARD, pathlib.Path.unlink),
    f'{SHARD} is missing, though model.safetensors.index.json',
  ),
  'empty shard': (_each(SHARD, lambda f: _cut(f, 0)), SHARD),
  'cut header': (_each(SHARD, lambda f: _cut(f, 50)), SHARD),
  'cut data': (_each(SHARD, lambda f: _cut(f, 30_000)), SHARD),
  'missing norm': (
    _retensor(f'{LAYER}.input_layernorm.weight', lambda t: None),
    f'lacks the tensor {LAYER}.input_layernorm.weight',
  ),
  'missing value': (
    _retensor(f'{LAYER}.self_attn.v_proj.weight', lambda t: None),
    f'lacks the tensor {LAYER}.self_attn.v_proj.weight',
  ),
  'long norm': (
    _retensor('model.norm.weight', lambda t: np.tile(t, 2)),
    'model.norm.weight has the shape (64,)',
  ),
  'short value': (
    _retensor(f'{LAYER}.self_attn.v_proj.weight', lambda t: t[:12]),
    f'{LAYER}.self_attn.v_proj.weight has the shape (12, 32)',
  ),
  'ragged query': (
    _retensor(f'{LAYER}.self_attn.q_proj.weight', lambda t: t[:47]),
    f'{LAYER}.self_attn.q_proj.weight has the shape (47, 32)',
  ),
  # As many numbers as asked for, in the wrong order.
  'transposed query': (
    _retensor(f'{LAYER}.self_attn.q_proj.weight', lambda t: t.T),
    f'{LAYER}.self_attn.q_proj.weight has the shape (32, 48)',
  ),
  'transposed output': (
    _retensor(f'{LAYER}.self_attn.o_proj.weight', lambda t: t.T),
    f'{LAYER}.self_attn.o_proj.weight has the shape (48, 32)',
  ),
  'short up': (
    _retensor(f'{LAYER}.mlp.up_proj.weight', lambda t: t[:40]),
    f'{LAYER}.mlp.up_proj.weight has the shape (40, 32)',
  ),
  'no tokenizer': (
    _each('tokenizer.model', pathlib.Path.unlink),
    'tokenizer.model is missing',
  ),
  'cut tokenizer': (
    _each('tokenizer.model', lambda f: _cut(f, 300)),
    'tokenizer.model is missing, damaged',
  ),
  'empty tokenizer': (
    _each('tokenizer.model', lambda f: _cut(f, 0)),
    'tokenizer.model is missing, damaged',
  ),
}


def _index(change):
  """Changes the weight_map of a folder's index."""

  def apply(folder):
    file = folder / huggingface.INDEX
    index = json.loads(file.read_text())
    change(index['weight_map'])
    file.write_text(json.dumps(index))

  return apply


def _read_all(folder):
  """All tensors that a folder's model is made of."""
  places = huggingface.places(folder)
  return {
    name: np.asarray(handle.get_slice(at)[:])
    for name, (handle, at) in places.items()
  }


@pytest.fixture
def shards(tmp_path):
  """A copy of a model in four shards, with an index."""
  return shutil.copytree(FIXTURES / 'hf_gemma2', tmp_path / 'model')


def test_the_index_says_which_copy_of_a_tensor_is_read(shards):
  want = _read_all(shards)
  index = json.loads((shards / huggingface.INDEX).read_text())['weight_map']
  for name in min(want), max(want):
    for shard in {*index.values()} - {index[name]}:
      at = shards / shard
      save_file(load_file(at) | {name: np.zeros_like(want[name])}, at)
  # And files that it does not list are not looked at.
  save_file(
    {name: np.zeros_like(x) for name, x in want.items()},
    shards / 'zzz.safetensors',
  )
  save_file({'odd': np.zeros(3)}, shards / 'model.safetensors')
  found = _read_all(shards)
  assert found.keys() == want.keys()
  jax.tree.map(np.testing.assert_array_equal, found, want)


def test_a_tensor_that_the_index_does_not_map_is_not_read(shards):
  name = 'model.norm.weight'
  _index(lambda files: files.pop(name))(shards)
  assert name not in huggingface.places(shards)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (
      lambda files: files.update({'model.norm.weight': SHARD}),
      f'{SHARD} lacks the tensor model.norm.weight, though model.safetensors.i',
    ),
    (lambda files: files.update({'model.norm.weight': None}), 'norm.weight is'),
    (lambda files: files.update({'model.norm.weight': 3}), 'norm.weight is 3'),
    (
      lambda files: files.update({'model.norm.weight': '../x.safetensors'}),
      "is '../x.safetensors', and not the name of a file beside it",
    ),
    (
      lambda files: files.update({'language_model.model.norm.weight': SHARD}),
      'lacks the tensor language_model.model.norm.weight',
    ),
  ],
)
def test_an_index_that_is_wrong_is_refused(shards, change, said):
  _index(change)(shards)
  with pytest.raises(ValueError, match=r'^model: ') as error:
    huggingface.places(shards)
  assert said in str(error.value)
  check_message(str(error.value), shards)


def test_without_an_index_there_is_one_file(shards):
  want = _read_all(shards)
  (shards / huggingface.INDEX).unlink()
  with pytest.raises(ValueError, match=r'^model: .* several files') as error:
    huggingface.places(shards)
  check_message(str(error.value), shards)
  for file in shards.glob('*.safetensors'):
    assert file.name in str(error.value)
  # The usual name decides, whatever else lies there.
  save_file(want, shards / 'model.safetensors')
  for stray in 'adapter_model.safetensors', 'zzz.safetensors':
    save_file(
      {name: np.zeros_like(x) for name, x in want.items()}, shards / stray
    )
  found = _read_all(shards)
  jax.tree.map(np.testing.assert_array_equal, found, want)
  # As does the only file, whatever it is called.
  for file in shards.glob('*.safetensors'):
    file.rename(shards / 'only.bin' if file.stem != 'zzz' else file)
  assert set(_read_all(shards)) == set(want)


def test_a_tensor_by_two_names_is_refused(tmp_path):
  name = 'model.norm.weight'
  tensors = {x: np.ones(2) for x in (name, f'language_model.{name}')}
  save_file(tensors, tmp_path / 'model.safetensors')
  with pytest.raises(ValueError, match=r'the tensor model\.norm\.weight twice'):
    huggingface.places(tmp_path)


def check_message(message: str, folder=None) -> None:
  """One sentence, on one line, that says what to do."""
  message = message.replace(str(folder), 'FOLDER')
  assert '\n' not in message
  assert message.endswith('.')
  assert '. ' not in message
  assert re.search(r'\b(fetch|give|check)\b', message), message


@pytest.mark.parametrize(('damage', 'named'), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_refused_in_one_sentence(damage, named, tmp_path):
  folder = tmp_path / 'model'
  shutil.copytree(FIXTURES / 'hf_gemma2', folder)
  damage(folder)
  with pytest.raises(ValueError, match=r'^model: ') as error:
    checkpoints.load_model(folder)
  message = str(error.value)
  assert named in message
  assert str(folder) in message
  check_message(message, folder)


# --- config.json ---


def built(config):
  """gemma's configuration for a config.json."""
  return language.from_config(config).module.config


@pytest.mark.parametrize(
  'family', ['gemma2', 'gemma3_text', 'gemma3n_text', 'gemma4_text']
)
def test_absent_fields_take_the_defaults_of_transformers(family):
  defaults = json.loads((FIXTURES / 'hf_defaults.json').read_text())[family]
  silent = built({'model_type': family})
  assert silent == built(defaults)
  assert silent.num_layers == len(defaults['layer_types'])
  for name in ('hidden_size', 'head_dim', 'num_key_value_heads', 'vocab_size'):
    without = {k: v for k, v in defaults.items() if k != name}
    assert built(without) == silent, name


@pytest.mark.parametrize('text', [{}, {'model_type': 'gemma3_text'}, None])
def test_a_multimodal_config_may_say_little_of_its_text_part(text):
  whole = {'model_type': 'gemma3', 'text_config': text, 'vision_config': {}}
  assert built(whole) == built({'model_type': 'gemma3_text'})
  # The mapping has to know the same defaults.
  assert len(list(huggingface.leaves(whole))) == 2 + 26 * 11


def test_rope_fields_of_transformers_4_and_5_mean_the_same():
  five = read_config('hf_gemma3')
  four = {k: v for k, v in five.items() if k != 'rope_parameters'}
  four |= {
    'rope_theta': 1000.0,
    'rope_local_base_freq': 100.0,
    'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
  }
  assert built(four) == built(five)
  config = built(five)
  assert config.local_base_frequency == 100.0
  assert config.local_scale_factor == 1.0
  assert config.global_base_frequency == 1000.0
  assert config.global_scale_factor == 8.0


def test_gemma_3_rope_defaults_per_layer_type():
  def frequencies(**fields):
    config = built({'model_type': 'gemma3_text', **fields})
    return (
      config.local_base_frequency,
      config.local_scale_factor,
      config.global_base_frequency,
      config.global_scale_factor,
    )

  assert frequencies() == (10_000, 1, 1_000_000, 1)
  assert frequencies(rope_scaling=None) == (10_000, 1, 1_000_000, 1)
  # Older configs say `type`; and 4 scales no local layer.
  scaling = {'type': 'linear', 'factor': 4.0}
  assert frequencies(rope_scaling=scaling) == (10_000, 1, 1_000_000, 4)
  nested = {SLIDING: {'rope_theta': 500.0}}
  assert frequencies(rope_parameters=nested) == (500, 1, 1_000_000, 1)
  nested = {FULL: {'rope_type': 'default', 'factor': 8.0}}
  assert frequencies(rope_parameters=nested) == (10_000, 1, 1_000_000, 1)


@pytest.mark.parametrize(
  'fields',
  [
    {
      'rope_theta': 500.0,
      'rope_scaling': {'rope_type': 'linear', 'factor': 2.0},
    },
    {
      'rope_parameters': {
        'rope_type': 'linear',
        'factor': 2.0,
        'rope_theta': 500.0,
      }
    },
  ],
)
def test_gemma_2_turns_all_layers_alike(fields):
  config = built({'model_type': 'gemma2', **fields})
  assert config.local_base_frequency == config.global_base_frequency == 500
  assert config.local_scale_factor == config.global_scale_factor == 2
  config = built({'model_type': 'gemma2', 'rope_theta': 10_000.0})
  assert config.local_base_frequency == config.global_base_frequency == 10_000
  assert config.local_scale_factor == config.global_scale_factor == 1


def test_layer_types_from_a_pattern_or_spelled_out():
  def layers(**fields):
    types = built({'num_hidden_layers': 7, **fields}).attention_types
    return ''.join(kind.name[0] for kind in types)

  assert layers(model_type='gemma2') == 'LGLGLGL'
  assert layers(model_type='gemma3_text') == 'LLLLLGL'
  three = {'model_type': 'gemma3_text', 'sliding_window_pattern': 3}
  assert layers(**three) == 'LLGLLGL'
  spelled = [FULL] * 6 + [SLIDING]
  assert layers(**three, layer_types=spelled) == 'GGGGGGL'
  assert layers(model_type='gemma2', layer_types=spelled) == 'GGGGGGL'


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('model_type', 'gemma4_assistant'),
    ('tie_word_embeddings', False),
    ('hidden_activation', 'silu'),
    ('rms_norm_eps', 1e-5),
    ('attention_bias', True),
    ('use_bidirectional_attention', True),
    ('query_pre_attn_scalar', 100),
    ('layer_types', [FULL]),
    ('layer_types', ['chunked_attention'] * 26),
    ('rope_scaling', {'rope_type': 'yarn', 'factor': 4.0}),
    ('rope_scaling', {'rope_type': 'linear'}),
  ],
)
@pytest.mark.parametrize('family', ['gemma2', 'gemma3_text'])
def test_a_value_that_gemma_cannot_have_is_refused(family, field, value):
  config = {'model_type': family, field: value}
  word = 'rope' if field == 'rope_scaling' else field
  with pytest.raises(ValueError, match=rf'^config\.json: .*{word}') as error:
    language.from_config(config)
  assert str(error.value).endswith('.')


def test_a_value_that_was_rounded_to_float32_is_that_value():
  # As files that were written from float32 hold it.
  assert float(np.float32(1e-6)) == 9.999999974752427e-07
  config = {'model_type': 'gemma3_text', 'rms_norm_eps': 9.999999974752427e-07}
  assert language.from_config(config) == language.from_config(
    {'model_type': 'gemma3_text'}
  )
  for known in families.FIXED.values():
    if isinstance(known, float):
      assert families.same(float(np.float32(known)), known)
      assert not families.same(known * (1 + 1e-6), known)


_REFUSED = [
  ('gemma3n_text', 'altup_num_inputs', 2),
  ('gemma3n_text', 'altup_active_idx', 1),
  ('gemma3n_text', 'altup_correct_scale', False),
  ('gemma3n_text', 'intermediate_size', [8] * 34 + [9]),
  ('gemma3n_text', 'activation_sparsity_pattern', [0.5]),
  ('gemma3n_text', 'num_kv_shared_layers', 14),
  ('gemma3n_text', 'num_key_value_heads', 8),
  ('gemma4_text', 'use_bidirectional_attention', 'all'),
  ('gemma4_text', 'num_kv_shared_layers', 5),
  ('gemma4_text', 'enable_moe_block', True),
  ('gemma4_text', 'per_layer_config', {'0': {'head_dim': 512}}),
  ('gemma4_text', 'per_layer_config', {'5': {'head_dim': 512}}),
  ('gemma4_text', 'per_layer_config', {'5': {'sliding_window': 9}}),
]


@pytest.mark.parametrize(('family', 'field', 'value'), _REFUSED)
def test_a_value_that_later_families_cannot_have_is_refused(
  family, field, value
):
  said = {
    'num_key_value_heads': 'num_kv_shared_layers',
    'enable_moe_block': 'num_experts',
  }.get(field, field)
  with pytest.raises(ValueError, match=rf'^config\.json: {said} ') as error:
    language.from_config({'model_type': family, field: value})
  check_message(str(error.value))


def test_heads_of_full_layers_by_either_name():
  config = read_config('hf_gemma4_dense')
  named = {k: v for k, v in config.items() if k != 'per_layer_config'}
  named |= {'global_head_dim': 16, 'num_global_key_value_heads': 1}
  assert built(named) == built(config)
  assert built(config).global_key_size == 16
  assert built(config).num_global_kv_heads == 1


@pytest.mark.parametrize('folder', ['hf_gemma3n', 'hf_gemma4_shared'])
def test_keys_of_layers_that_own_none_are_not_looked_at(folder, tmp_path):
  # As Google's own folders hold them.
  shutil.copytree(FIXTURES / folder, tmp_path, dirs_exist_ok=True)
  layer, tensors = 'model.layers.5.self_attn', stored(FIXTURES / folder)
  for name in ('k_proj', 'v_proj', 'k_norm'):
    assert f'{layer}.{name}.weight' not in tensors
    like = tensors[f'model.layers.3.self_attn.{name}.weight']
    tensors[f'{layer}.{name}.weight'] = np.full_like(like, 7)
  for file in tmp_path.glob('*.safetensors*'):
    file.unlink()
  save_file(tensors, tmp_path / 'model.safetensors')
  model, params, _ = checkpoints.load_folder(tmp_path)
  assert model == load(folder).model
  jax.tree.map(np.testing.assert_array_equal, params, load(folder).params)


def test_every_share_of_layers_can_be_said():
  for layers in (6, 25, 30, 35, 42, 60):
    for shared in range(2, layers - 1):
      own = layers - shared
      kinds = [[SLIDING, FULL][(i + own) % 2] for i in range(layers)]
      config = dict(
        model_type='gemma3n_text',
        num_hidden_layers=layers,
        num_kv_shared_layers=shared,
        layer_types=kinds,
      )
      assert huggingface._shared_layers(built(config)) == shared, config


# --- gemma's own checkpoints ---


def _hub(family, layers, width, hidden, heads, kv_heads, vocab, **fields):
  """As in the config.json of a published model."""
  return dict(
    model_type=family,
    num_hidden_layers=layers,
    hidden_size=width,
    intermediate_size=hidden,
    num_attention_heads=heads,
    num_key_value_heads=kv_heads,
    vocab_size=vocab,
    **fields,
  )


_TWO = dict(
  attn_logit_softcapping=50.0,
  final_logit_softcapping=30.0,
  hidden_act='gelu_pytorch_tanh',
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  rope_theta=10000.0,
  sliding_window=4096,
)
_SMALL = dict(
  head_dim=256,
  query_pre_attn_scalar=256,
  rope_local_base_freq=10000,
  rope_scaling=None,
  rope_theta=1000000,
  sliding_window=512,
  sliding_window_pattern=6,
)
_LARGE = dict(
  rope_scaling={'factor': 8.0, 'rope_type': 'linear'},
  sliding_window=1024,
)
_FOUR = _hub('gemma3_text', 34, 2560, 10240, 8, 4, 262208, **_LARGE)
HUB = {
  'gemma2-2b': _hub(
    'gemma2', 26, 2304, 9216, 8, 4, 256000, head_dim=256, **_TWO
  ),
  'gemma2-9b': _hub(
    'gemma2', 42, 3584, 14336, 16, 8, 256000, head_dim=256, **_TWO
  ),
  'gemma2-27b': _hub(
    'gemma2',
    46,
    4608,
    36864,
    32,
    16,
    256000,
    head_dim=128,
    query_pre_attn_scalar=144,
    **_TWO,
  ),
  'gemma3-270m': _hub('gemma3_text', 18, 640, 2048, 4, 1, 262144, **_SMALL),
  'gemma3-1b': _hub('gemma3_text', 26, 1152, 6912, 4, 1, 262144, **_SMALL),
  # The published file leaves out what equals the defaults.
  'gemma3-4b': {
    'model_type': 'gemma3',
    'text_config': {
      k: v
      for k, v in _FOUR.items()
      if k not in ('num_attention_heads', 'num_key_value_heads', 'vocab_size')
    },
    'vision_config': {'hidden_size': 1152},
  },
  'gemma3-12b': {
    'model_type': 'gemma3',
    'text_config': _hub(
      'gemma3_text', 48, 3840, 15360, 16, 8, 262208, **_LARGE
    ),
  },
  'gemma3-27b': {
    'model_type': 'gemma3',
    'text_config': _hub(
      'gemma3_text',
      62,
      5376,
      21504,
      32,
      16,
      262208,
      head_dim=128,
      query_pre_attn_scalar=168,
      **_LARGE,
    ),
  },
}
_WINDOWS = {
  'sliding_attention': {'rope_type': 'default', 'rope_theta': 10_000.0},
  'full_attention': {
    'rope_type': 'proportional',
    'partial_rotary_factor': 0.25,
    'rope_theta': 1_000_000.0,
  },
}


def _every(count, layers):
  """The kind of each layer, one in so many with full attention."""
  return [SLIDING if (i + 1) % count else FULL for i in range(layers)]


def _three_n(layers, hidden):
  text = _hub(
    'gemma3n_text',
    layers,
    2048,
    [hidden] * layers,
    8,
    2,
    262_400,
    head_dim=256,
    vocab_size_per_layer_input=262_144,
    hidden_size_per_layer_input=256,
    num_kv_shared_layers=layers - 20,
    layer_types=_every(5, layers),
    activation_sparsity_pattern=[0.95] * 10 + [0.0] * (layers - 10),
    altup_coef_clip=120.0,
    laurel_rank=64,
    sliding_window=512,
    final_logit_softcapping=30.0,
    rope_theta=1_000_000.0,
    rope_local_base_freq=10_000.0,
  )
  return {'model_type': 'gemma3n', 'text_config': text}


def _four(layers, every, *sizes, **fields):
  text = _hub(
    'gemma4_text',
    layers,
    *sizes,
    262_144,
    **dict(
      head_dim=256,
      global_head_dim=512,
      layer_types=_every(every, layers),
      final_logit_softcapping=30.0,
      rope_parameters=_WINDOWS,
      hidden_size_per_layer_input=0,
      vocab_size_per_layer_input=262_144,
    )
    | fields,
  )
  return {'model_type': 'gemma4', 'text_config': text}


_LARGE_FOUR = dict(
  sliding_window=1024,
  attention_k_eq_v=True,
  use_bidirectional_attention='vision',
)
NEWER = {
  'gemma3n-e2b': _three_n(30, 8192),
  'gemma3n-e4b': _three_n(35, 16384),
  'gemma4-e2b': _four(
    35,
    5,
    1536,
    6144,
    8,
    1,
    hidden_size_per_layer_input=256,
    num_kv_shared_layers=20,
    use_double_wide_mlp=True,
    sliding_window=512,
  ),
  'gemma4-e4b': _four(
    42,
    6,
    2560,
    10240,
    8,
    2,
    hidden_size_per_layer_input=256,
    num_kv_shared_layers=18,
    sliding_window=512,
  ),
  'gemma4-26b-a4b': _four(
    30,
    6,
    2816,
    2112,
    16,
    8,
    num_global_key_value_heads=2,
    enable_moe_block=True,
    num_experts=128,
    top_k_experts=8,
    moe_intermediate_size=704,
    **_LARGE_FOUR,
  ),
  'gemma4-31b': _four(
    60, 6, 5376, 21504, 32, 16, num_global_key_value_heads=4, **_LARGE_FOUR
  ),
}
# Of which gemma has no class: a Gemma 4 all the same.
_TWELVE = {
  'model_type': 'gemma4_unified',
  'text_config': _four(
    48, 6, 3840, 15360, 16, 8, num_global_key_value_heads=1, **_LARGE_FOUR
  )['text_config']
  | {'model_type': 'gemma4_unified_text'},
}
VARIANTS = [f'{size}-{kind}' for size in HUB for kind in ('pt', 'it')]
# Of gemma's own checkpoints: layers, width, vocabulary.
OWN = {
  'gemma2-2b': (26, 2304, 256128),
  'gemma2-9b': (42, 3584, 256128),
  'gemma2-27b': (46, 4608, 256128),
  'gemma3-270m': (18, 640, 262144),
  'gemma3-1b': (26, 1152, 262144),
  'gemma3-4b': (34, 2560, 262144),
  'gemma3-12b': (48, 3840, 262144),
  'gemma3-27b': (62, 5376, 262144),
}


def test_the_names_of_gemmas_checkpoints():
  names = language.gemma_checkpoints()
  ours = [n for n in names if re.match('gemma[23]-', n)]
  assert sorted(ours) == sorted(VARIANTS)
  assert names['gemma2-2b-it'].value.endswith('/gemma2-2b-it')


@functools.cache
def own_model(size: str):
  return language.from_gemma(f'{size}-it')


@functools.cache
def own_shapes(size: str):
  return own_model(size)[0].param_shapes()


@pytest.mark.slow
@pytest.mark.parametrize('size', HUB)
def test_a_name_builds_its_architecture(size):
  model, tokenizer = own_model(size)
  shapes = own_shapes(size)
  layers, width, vocab = OWN[size]
  assert shapes['embedder']['input_embedding'].shape == (vocab, width)
  assert model.vocab_size == vocab
  assert sum(name.startswith('layer_') for name in shapes) == layers
  # Images are of no use here, and their encoder is large.
  assert 'vision_encoder' not in shapes
  assert 'mm_input_projection' not in shapes['embedder']
  assert re.search(rf'gemma{size[5]}.*\.model$', tokenizer)
  assert language.from_gemma(f'{size}-pt') == (model, tokenizer)


def _hub_shapes(text) -> dict[str, tuple[int, ...]]:
  """Tensors of a published checkpoint, from its sizes."""
  width, hidden = text['hidden_size'], text['intermediate_size']
  dim = text.get('head_dim', 256)
  queries = text.get('num_attention_heads', 8) * dim
  keys = text.get('num_key_value_heads', 4) * dim
  layer = {
    'self_attn.q_proj': (queries, width),
    'self_attn.k_proj': (keys, width),
    'self_attn.v_proj': (keys, width),
    'self_attn.o_proj': (width, queries),
    'mlp.gate_proj': (hidden, width),
    'mlp.up_proj': (hidden, width),
    'mlp.down_proj': (width, hidden),
    'input_layernorm': (width,),
    'post_attention_layernorm': (width,),
    'pre_feedforward_layernorm': (width,),
    'post_feedforward_layernorm': (width,),
  }
  if text['model_type'] == 'gemma3_text':
    layer |= {'self_attn.q_norm': (dim,), 'self_attn.k_norm': (dim,)}
  tensors = {
    'model.embed_tokens.weight': (text.get('vocab_size', 262208), width),
    'model.norm.weight': (width,),
  }
  for i, (name, shape) in itertools.product(
    range(text['num_hidden_layers']), layer.items()
  ):
    tensors[f'model.layers.{i}.{name}.weight'] = shape
  return tensors


@pytest.mark.parametrize('size', HUB)
def test_a_published_config_is_the_architecture_that_gemma_has(size):
  ours, theirs = built(HUB[size]), own_model(size)[0].module.config
  for field in dataclasses.fields(theirs):
    # Published vocabularies are padded differently, and the gate is a choice.
    if field.name in ('num_embed', 'transpose_gating_einsum'):
      continue
    a, b = getattr(ours, field.name), getattr(theirs, field.name)
    assert a == b, field.name


@pytest.mark.slow
@pytest.mark.parametrize('size', HUB)
def test_every_leaf_of_a_published_size_has_its_tensors(size):
  # All layers have the same leaves; seven hold one of every kind.
  text = HUB[size].get('text_config', HUB[size]) | {'num_hidden_layers': 7}
  tensors = _hub_shapes(text)
  wanted = paths(language.from_config(text).param_shapes())
  leaves = list(huggingface.leaves(text))
  assert sorted(leaf.path for leaf in leaves) == sorted(wanted)
  names = [name for leaf in leaves for name in leaf.names]
  assert sorted(names) == sorted(tensors)
  for leaf in leaves:
    parts = [
      jax.ShapeDtypeStruct(tensors[name], jnp.float32) for name in leaf.names
    ]
    packed = jax.eval_shape(leaf.pack, parts)
    assert packed.shape == wanted[leaf.path], leaf.path
    again = jax.eval_shape(leaf.unpack, packed)
    assert [x.shape for x in again] == [x.shape for x in parts], leaf.path
  # gemma's own tree has the same leaves, up to the vocabulary and the gate.
  own = paths(own_shapes(size))
  assert wanted.keys() <= own.keys()
  layers = OWN[size][0]
  assert len(own) - 2 == (len(wanted) - 2) / 7 * layers
  for path, shape in wanted.items():
    if path[-1] == 'gating_einsum':
      assert sorted(shape) == sorted(own[path])
    elif path[-1] != 'input_embedding':
      assert shape == own[path], path


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list():
  with pytest.raises(ValueError, match='did you mean') as error:
    checkpoints.load_model('gemma2_2b_it')
  message = str(error.value)
  assert "'gemma2_2b_it'" in message
  assert "did you mean 'gemma2-2b-it'?" in message
  for name in [*checkpoints.BUNDLED, *VARIANTS]:
    assert name in message.split('?')[1]
  with pytest.raises(ValueError, match="did you mean 'tiny-drafter'"):
    checkpoints.load_model('tinydrafter')


def test_a_missing_folder_is_no_known_name(tmp_path):
  folder = tmp_path / 'nowhere'
  with pytest.raises(ValueError, match='is no folder and no known name') as e:
    checkpoints.load_model(folder)
  assert str(folder) in str(e.value)


@pytest.fixture
def local_tokenizer(monkeypatch):
  """Lets gemma's tokenizers be read from a fixture."""
  proto = (FIXTURES / 'hf_gemma2' / 'tokenizer.model').read_bytes()
  asked = []

  def path(name):
    asked.append(name)
    return types.SimpleNamespace(read_bytes=lambda: proto)

  monkeypatch.setattr(checkpoints.epath, 'Path', path)
  return asked


@pytest.mark.parametrize('kind', ['pt', 'it'])
def test_a_name_is_fetched_by_gemma(monkeypatch, local_tokenizer, kind):
  calls = []

  def load_params(path, params):
    calls.append((path, params))
    return {'the': {'parameters': jnp.ones(3, jnp.bfloat16)}}

  shape = jax.ShapeDtypeStruct((3,), jnp.float32)
  monkeypatch.setattr(
    language, 'orbax_shapes', lambda path: {'the': {'parameters': shape}}
  )
  monkeypatch.setattr(language.import_gemma().ckpts, 'load_params', load_params)
  name = f'gemma2-2b-{kind}'
  model, params, tokenizer = checkpoints.load_model(name, 'bfloat16').unpacked()
  (path, wanted), *rest = calls
  assert not rest
  assert path.endswith(f'/{name}')
  # Read as it is to be, and where.
  wanted = wanted['the']['parameters']
  assert (wanted.shape, wanted.dtype) == ((3,), jnp.bfloat16)
  assert wanted.sharding.device_set == {jax.local_devices()[0]}
  assert model == dataclasses.replace(own_model('gemma2-2b')[0], vocab_size=64)
  np.testing.assert_array_equal(params['the']['parameters'], 1)
  assert isinstance(tokenizer, tokenizers.Tokenizer)
  assert local_tokenizer == [own_model('gemma2-2b')[1]]


def _refuse(*args, **kwargs):
  raise OSError('no route to host\nand a long trace')


@pytest.mark.parametrize('part', ['parameters', 'tokenizer'])
def test_a_failed_fetch_says_what_to_do(monkeypatch, local_tokenizer, part):
  monkeypatch.setattr(language, 'orbax_shapes', _refuse)
  if part == 'tokenizer':
    monkeypatch.setattr(checkpoints.epath, 'Path', _refuse)
  with pytest.raises(ValueError, match=r'^model: gemma3-1b-it ') as error:
    checkpoints.load_model('gemma3-1b-it')
  message = str(error.value)
  assert 'no route to host' in message
  assert 'check the connection' in message
  check_message(message)


@pytest.mark.parametrize('size', NEWER)
def test_a_newer_config_is_the_architecture_that_gemma_has(size):
  ours, theirs = built(NEWER[size]), own_model(size)[0].module.config
  for field in dataclasses.fields(theirs):
    if field.name == 'audio_encoder':
      continue
    a, b = getattr(ours, field.name), getattr(theirs, field.name)
    if field.name == 'final_logit_softcap':
      # Published files of Gemma 3n have one, and gemma's class has not.
      assert (a, b) == (30.0, None if size.startswith('gemma3n') else 30.0)
    else:
      assert a == b, field.name


@pytest.mark.parametrize('size', NEWER)
def test_a_newer_model_of_gemmas_can_be_said(size):
  model, _ = own_model(size)
  fields = huggingface.config_of(model, own_shapes(size), (1,))
  assert built(fields) == dataclasses.replace(
    model.module.config, **_without_sound(model)
  )
  again = built(json.loads(json.dumps(fields)))
  assert again == built(fields)


def _without_sound(model):
  """gemma's models for text still say what they would hear with."""
  config = model.module.config
  return {'audio_encoder': None} if hasattr(config, 'audio_encoder') else {}


def _newer_shapes(text) -> dict[str, tuple[int, ...]]:
  """Tensors of a published checkpoint of Gemma 3n or 4, from its sizes."""
  width, layers = text['hidden_size'], text['num_hidden_layers']
  three = text['model_type'] == 'gemma3n_text'
  inner = text.get('hidden_size_per_layer_input', 0)
  tensors = {
    'embed_tokens.weight': (text['vocab_size'], width),
    'norm.weight': (width,),
  }
  if inner:
    tensors |= {
      'embed_tokens_per_layer.weight': (262_144, layers * inner),
      'per_layer_model_projection.weight': (layers * inner, width),
      'per_layer_projection_norm.weight': (inner,),
    }
  if three:
    for i, name in itertools.product(range(3), ('', 'unembed_')):
      tensors[f'altup_{name}projections.{i}.weight'] = (width, width)
  for i, kind in enumerate(text['layer_types']):
    whole = kind == FULL and not three
    shares = i >= layers - text.get('num_kv_shared_layers', 0)
    dim = text['global_head_dim'] if whole else text['head_dim']
    queries = text['num_attention_heads'] * dim
    keys = text['num_key_value_heads'] * dim
    if whole:
      keys = text.get('num_global_key_value_heads', keys // dim) * dim
    hidden = text['intermediate_size']
    hidden = hidden[i] if isinstance(hidden, list) else hidden
    hidden *= 2 if shares and text.get('use_double_wide_mlp') else 1
    layer = {
      'self_attn.q_proj.weight': (queries, width),
      'self_attn.q_norm.weight': (dim,),
      'self_attn.o_proj.weight': (width, queries),
      'mlp.gate_proj.weight': (hidden, width),
      'mlp.up_proj.weight': (hidden, width),
      'mlp.down_proj.weight': (width, hidden),
    }
    norms = ['input', 'post_attention', 'pre_feedforward', 'post_feedforward']
    layer |= {f'{norm}_layernorm.weight': (width,) for norm in norms}
    if not shares:
      layer['self_attn.k_proj.weight'] = keys, width
      layer['self_attn.k_norm.weight'] = (dim,)
      if not (whole and text.get('attention_k_eq_v')):
        layer['self_attn.v_proj.weight'] = keys, width
    if inner:
      layer |= {
        'per_layer_input_gate.weight': (inner, width),
        'per_layer_projection.weight': (width, inner),
        'post_per_layer_input_norm.weight': (width,),
      }
    if three:
      layer |= {
        'altup.correct_output_scale': (width,),
        'altup.correction_coefs.weight': (4, 4),
        'altup.prediction_coefs.weight': (16, 4),
        'altup.modality_router.weight': (4, width),
        'altup.router_norm.weight': (width,),
        'laurel.linear_left.weight': (64, width),
        'laurel.linear_right.weight': (width, 64),
        'laurel.post_laurel_norm.weight': (width,),
      }
    else:
      layer['layer_scalar'] = (1,)
    if text.get('enable_moe_block'):
      layer |= {
        'router.proj.weight': (128, width),
        'router.scale': (width,),
        'router.per_expert_scale': (128,),
        'experts.gate_up_proj': (128, 2 * 704, width),
        'experts.down_proj': (128, width, 704),
        'post_feedforward_layernorm_1.weight': (width,),
        'post_feedforward_layernorm_2.weight': (width,),
        'pre_feedforward_layernorm_2.weight': (width,),
      }
    tensors |= {f'layers.{i}.{name}': shape for name, shape in layer.items()}
  return {f'model.{name}': shape for name, shape in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize('size', [*NEWER, '12B'])
def test_every_leaf_of_a_newer_size_has_its_tensors(size):
  config = _TWELVE if size == '12B' else NEWER[size]
  tensors = _newer_shapes(config['text_config'])
  wanted = paths(language.from_config(config).param_shapes())
  leaves = list(huggingface.leaves(config))
  assert sorted(leaf.path for leaf in leaves) == sorted(wanted)
  names = [name for leaf in leaves for name in leaf.names]
  assert sorted(names) == sorted(tensors)
  for leaf in leaves:
    parts = [
      jax.ShapeDtypeStruct(tensors[name], jnp.float32) for name in leaf.names
    ]
    packed = jax.eval_shape(leaf.pack, parts)
    assert packed.shape == wanted[leaf.path], leaf.path
    again = jax.eval_shape(leaf.unpack, packed)
    assert [x.shape for x in again] == [x.shape for x in parts], leaf.path
  if size != '12B':
    own = paths(own_shapes(size))
    assert own == wanted
