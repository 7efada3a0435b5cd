"""Reading and writing checkpoints: their formats, dtypes and config.json."""

import dataclasses
import json
import pathlib
import shutil
import types

import conftest
import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import small
from fixtures import gguf_writer
from safetensors.numpy import load_file, save_file
from small import FIXTURES, dtypes, load, read_json, refused, same, stored

import cascades
from cascades import drafters, load_model
from cascades.drafters import assistant, eagle3, recurrent
from cascades.models import (
  checkpoints,
  gemma_library,
  language,
  param_mapping,
  tensor_files,
  tokenizers,
)
from cascades.sampler import scoring
from cascades.verification_config import DRAFT

TINY = checkpoints.ASSETS / 'tiny-drafter'
TABLE = param_mapping.TABLE_TENSOR
FULL, SLIDING = 'full_attention', 'sliding_attention'
_GENERATION = 'generation_config.json'
_ROOTS = 'model.language_model', 'language_model.model'
_HEAD = checkpoints.ASSETS / 'tiny-recurrent'
_ASSISTANT = FIXTURES / 'hf_gemma4_shared_assistant'
_EAGLE = FIXTURES / 'eagle3_joined'


@pytest.fixture
def copied(tmp_path):
  """Copies a fixture, which a test then changes."""
  return lambda folder: shutil.copytree(FIXTURES / folder, tmp_path / 'model')


@pytest.mark.parametrize('root', _ROOTS)
def test_the_text_part_of_a_multimodal_checkpoint(copied, root):
  there, changed = copied('hf_gemma3'), {}
  for name, tensor in stored(there).items():
    changed |= {name: None, name.replace('model', root, 1): tensor}
  vision = root.replace('language_model', 'vision_tower')
  changed[f'{vision}.embeddings.weight'] = np.ones((3, 3), np.float32)
  small.rewrite(there, tensors=changed)
  file = there / 'config.json'
  whole = dict(model_type='gemma3', text_config=read_json(file))
  file.write_text(json.dumps(whole))
  read = load_model(str(there)).unpack()
  assert read.model == load('hf_gemma3').model
  same(read.params, load('hf_gemma3').params)


# --- Dtypes: as stored, as declared, as asked for ---


def as_bfloat16(params):
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)


@pytest.mark.parametrize('name', ['tiny-drafter', FIXTURES / 'hf_gemma2'])
def test_parameters_become_another_dtype_as_they_are_read(name):
  whole, read = (load_model(name, x) for x in (None, 'bfloat16'))
  assert read.model == whole.model
  same(read.params, as_bfloat16(whole.params))
  assert dtypes(read.params) == {'bfloat16'}
  assert dtypes(drafters.load(str(_HEAD), 'bfloat16').head) == {'bfloat16'}


def test_dtypes_of_no_parameters_are_refused():
  for dtype in 'int4', 'float16':
    for option, call in (
      ('dtype', lambda x: load_model('tiny-drafter', x)),
      ('dtype', lambda x: small.sampler('tiny-verifier', gamma=0, dtype=x)),
      *(
        ('dtype', lambda x, name=str(name): drafters.load(name, x))
        for name in (_HEAD, _ASSISTANT, _EAGLE)
      ),
      ('stored', lambda x: checkpoints.save_model('x', load(TINY), stored=x)),
    ):
      said = conftest.refused(option, call, dtype)
      assert f"must be one of bfloat16, float32, int8, got '{dtype}'" in said
  # Activations pass the largest number of float16.
  one = load_model(TINY)
  half = jax.tree.map(lambda x: x.astype(np.float16), one.params)
  at = jnp.arange(2)
  for call in (
    lambda: small.sampler(one._replace(params=half), gamma=0).sample('a'),
    lambda: one.model.with_hidden(half, at, at, jnp.ones((2, 2), bool)),
  ):
    assert 'must not be float16' in conftest.refused('params', call)


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
    assert dtypes(load_model(tmp_path).params) == {want}, said
  # Keys would be float32 in a cache of bfloat16.
  for more in np.float32, np.float16:
    assert tensor_files.choose_dtype([jnp.bfloat16, more]) == 'float32'


@pytest.mark.parametrize(
  ('source', 'read', 'part'),
  [
    (FIXTURES / 'hf_gemma2', load_model, 'params'),
    (_HEAD, recurrent.RecurrentHead.load, 'head'),
    (_ASSISTANT, assistant.Assistant.load, 'params'),
    (_EAGLE, eagle3.EagleHead.load, 'params'),
  ],
)
def test_float16_is_read_as_float32(tmp_path, source, read, part):
  found = []
  for dtype in 'float32', 'float16':
    folder = shutil.copytree(source, tmp_path / dtype)
    for file in folder.glob('*.safetensors'):
      # Every number is one of float16's, whatever it is kept in.
      tensors = {
        name: x if x.dtype.kind in 'iub' else x.astype('float16').astype(dtype)
        for name, x in load_file(file).items()
      }
      save_file(tensors, file)
    if (folder / 'config.json').exists():
      small.rewrite(folder, {'dtype': dtype, 'torch_dtype': dtype})
    found.append(getattr(read(folder), part))
  same(*found)
  # Gemma asks for some leaves that nothing is stored of.
  leaves = [x for x in jax.tree.leaves(found[1]) if x.any()]
  assert dtypes(leaves) <= {'float32', 'int32'}


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
  read = load_model(folder / 'gemma3-tiny-it')
  assert (read.model, read.tokenizer) == (want.model, want.tokenizer)
  assert read.tokenizer.suppress_tokens == (6,)
  assert read.tokenizer.chat_template == '{{ bos_token }}'
  same(read.params, want.params)
  read = load_model(folder / 'gemma3-tiny-it', 'bfloat16')
  assert dtypes(read.params) == {'bfloat16'}
  same(read.params, as_bfloat16(want.params))


@pytest.fixture
def catalogue(monkeypatch):
  """Replaces gemma's checkpoints by two, the second in the downloads."""
  found = {f'gemma{i}-tiny-it': load(f'hf_gemma{i}').model for i in (2, 3)}
  file = str(FIXTURES / 'hf_gemma3' / 'tokenizer.model')
  monkeypatch.setattr(gemma_library, 'gemma_checkpoints', lambda: dict(found))
  monkeypatch.setattr(language, 'from_gemma', lambda name: (found[name], file))
  return found


@pytest.mark.parametrize('said', ['gemma3-tiny', 'gemma3-tiny-it'])
def test_an_architecture_is_named(downloads, catalogue, tmp_path, said):
  # Without a config.json, and without a tokenizer.
  shutil.copytree(downloads / 'flat' / 'gemma3-tiny-it', tmp_path / 'it')
  read = load_model(f'{said}:{tmp_path / "it"}').unpack()
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
    assert said in refused(name)
  (folder / '_METADATA').write_text('{')
  name = f'gemma3-tiny:{folder}'
  assert 'cannot be read' in refused(name)


# --- Folders that cannot be read ---


def _read_all(folder):
  """All tensors that a folder's model is made of."""
  places = tensor_files.open_folder(folder)
  return {name: np.asarray(rows) for name, rows in places.items()}


def test_the_index_says_which_copy_of_a_tensor_is_read(copied):
  shards, norm = copied('hf_gemma2'), 'model.norm.weight'
  want = _read_all(shards)
  index = read_json(shards / tensor_files.INDEX)['weight_map']
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
def test_an_untied_head_is_refused(copied, monkeypatch, declared, prefix):
  folder, table = copied('hf_gemma3'), stored(FIXTURES / 'hf_gemma3')[TABLE]
  monkeypatch.setattr(checkpoints, '_HEAD_ROWS', 5)
  name = f'{prefix}lm_head.weight'
  small.rewrite(folder, {'tie_word_embeddings': declared}, {name: table})
  load_model(folder)
  half = table.astype(np.float16)
  changed = np.concatenate([table[:-1], table[-1:] + 1])
  for head, said in (
    *((x, f'differs from {TABLE}, and') for x in (changed, half)),
    *((x, 'has the shape') for x in (table[:-1], table[:, 0])),
  ):
    small.rewrite(folder, tensors={name: head})
    assert f'lm_head.weight {said}' in refused(folder)


# --- config.json ---


def test_a_multimodal_config_may_say_little_of_its_text_part():
  for text in {}, {'model_type': 'gemma3_text'}, None:
    whole = {'model_type': 'gemma3', 'text_config': text, 'vision_config': {}}
    want = small.built({'model_type': 'gemma3_text'})
    assert small.built(whole) == want


_LINEAR = {'rope_type': 'linear', 'factor': 2.0}
_OF_4 = {'rope_local_base_freq': 100.0, 'rope_theta': 1000.0}


def test_positions_turn_as_a_config_says():
  three, two = 'gemma3_text', 'gemma2'
  for family, fields, want in (
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
    config = small.built({'model_type': family, **fields})
    found = (
      *(config.local_base_frequency, config.local_scale_factor),
      *(config.global_base_frequency, config.global_scale_factor),
    )
    assert found == want, fields


def test_layer_types_from_a_pattern_or_spelled_out():
  three = {'model_type': 'gemma3_text', 'sliding_window_pattern': 3}
  spelled = {'layer_types': [FULL] * 6 + [SLIDING]}
  for fields, want in ((three, 'LLGLLGL'), (three | spelled, 'GGGGGGL')):
    types = small.built({'num_hidden_layers': 7} | fields).attention_types
    assert ''.join(kind.name[0] for kind in types) == want


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
  model, params, _ = load_model(there).unpack()
  assert model == load(folder).model
  same(params, load(folder).params)


def test_an_unknown_name_is_answered_with_the_list(tmp_path):
  for name in ('gemma2_2b_it', str(tmp_path / 'nowhere')):
    said = refused(name)
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
  model, params, tokenizer = load_model(name, 'bfloat16').unpack()
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
    assert f'{name} cannot be read (no route to host); fetch' in refused(name)


# --- Formats ---


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


# --- Folders that are written for transformers, and read again ---


def test_a_large_model_is_written_and_read_in_parts(tmp_path, monkeypatch):
  checkpoint = load('hf_gemma2')
  monkeypatch.setattr(checkpoints, '_SHARD_BYTES', 20_000)
  checkpoints.save_model(tmp_path, checkpoint)
  index = read_json(tmp_path / tensor_files.INDEX)
  parts = {x.name for x in tmp_path.glob('*.safetensors')}
  assert parts == {*index['weight_map'].values()}
  assert len(parts) > 2
  same(load(tmp_path).params, checkpoint.params)
  monkeypatch.undo()
  checkpoints.save_model(tmp_path, checkpoint)
  names = [x.name for x in tmp_path.glob('*.safetensors*')]
  assert names == ['model.safetensors']


def test_a_gate_by_columns_is_written_by_rows(tmp_path):
  # As gemma's own Gemma 2 2B has it.
  rows = load_model(FIXTURES / 'hf_gemma2').unpack()
  model = small.reconfigure(rows.model, transpose_gating_einsum=False)
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: x.mT if path[-1].key == 'gating_einsum' else x, rows.params
  )
  columns = checkpoints.Checkpoint(model, params, rows.tokenizer)
  for checkpoint in columns, columns.pack():
    checkpoints.save_model(tmp_path, checkpoint)
    read = load_model(tmp_path).unpack()
    assert read.model == rows.model
    same(read.params, rows.params)


@pytest.mark.parametrize(
  ('said', 'stops'),
  [
    ({}, (1,)),
    ({_GENERATION: [1, 40]}, (1, 40)),
    ({'config.json': [1, 40], _GENERATION: 41}, (1, 40, 41)),
  ],
)
def test_a_folder_says_where_answers_end(said, stops, tmp_path):
  checkpoints.save_model(tmp_path, load('hf_gemma3'))
  tensor_files.write_json(tmp_path / _GENERATION, {'suppress_tokens': [5, 9]})
  for name, ids in said.items():
    fields = read_json(tmp_path / name) | {'eos_token_id': ids}
    tensor_files.write_json(tmp_path / name, fields)
  read = load_model(tmp_path)
  # Written, and read again.
  checkpoints.save_model(tmp_path / 'again', read)
  file = tmp_path / 'a.gguf'
  gguf_writer.save_gguf(file, read)
  for checkpoint in (read, *map(load_model, (tmp_path / 'again', file))):
    # A file of llama.cpp's has two.
    assert checkpoint.tokenizer.stops in (stops, (1, *stops[-1:]))
    assert checkpoint.tokenizer.suppress_tokens == (5, 9)


def test_tokens_that_a_folder_suppresses_are_in_no_answer(tmp_path):
  verifier, drafter = small.pair()
  folder = shutil.copytree(verifier, tmp_path / 'model')
  options = dict(method='speed', lenience=0.0, gamma=2, temperature=1.0)
  free = small.sampler(verifier, drafter, **options)
  asked = dict(max_new_tokens=12, seed=3)
  ids = sorted({*free.sample('one', **asked).tokens} - {tokenizers.EOS})
  tensor_files.write_json(folder / _GENERATION, {'suppress_tokens': ids})
  one = small.sampler(str(folder), drafter, **options)
  answer = one.sample('one', **asked)
  want = free.sample('one', forbidden_tokens=ids, **asked)
  assert (answer.tokens, answer.logprobs) == (want.tokens, want.logprobs)
  assert ''.join(one.stream('one', **asked)) == want.text
  assert one.sample_curve(['one'], [0.0], **asked)[0][0].tokens == want.tokens
  assert not {*ids} & {*answer.tokens}
  # What a request forbids takes the place of what the folder does.
  for forbidden in ([], ids[:1]):
    asked['forbidden_tokens'] = forbidden
    other = one.sample('one', **asked).tokens
    assert other == free.sample('one', **asked).tokens != answer.tokens
  # The decisions are explained, and texts have the models' probabilities.
  decided = [
    (x.uniform < x.acceptance) == (x.source == DRAFT)
    for x in cascades.explain(one, 'one', answer)
    if x.draft is not None
  ]
  assert decided == [True] * len(decided) != []
  first, second = (scoring.score(x, [([2], ids)]) for x in (one, free))
  assert first == second


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    *(('suppress_tokens', [x]) for x in (64, -1, True, 'a', 1.5)),
    ('begin_suppress_tokens', [5]),
    ('bad_words_ids', [[5]]),
    *(('eos_token_id', x) for x in (['</s>'], 64, True)),
  ],
)
def test_tokens_that_no_model_has_are_refused(field, value, tmp_path):
  checkpoints.save_model(tmp_path, load('hf_gemma3'))
  tensor_files.write_json(tmp_path / _GENERATION, {field: value})
  assert f'{tmp_path / _GENERATION}: {field}' in refused(tmp_path)
  (tmp_path / _GENERATION).write_text('[')
  assert 'config.json: it is damaged' in refused(tmp_path)
  for nothing in (None, []):
    tensor_files.write_json(tmp_path / _GENERATION, {field: nothing})
    assert not load_model(tmp_path).tokenizer.suppress_tokens


# --- The launcher ---


def test_the_launcher_writes_a_model_and_no_other_over_it(tmp_path):
  folder = tmp_path / 'out'
  flags = '--model=tiny-drafter', f'--folder={folder}'
  done = launching.run('experiments.export', *flags, '--dtype=bfloat16')
  assert done.returncode == 0, done.stderr
  for file in folder.iterdir():
    assert str(file) in done.stdout
  want = load_model('tiny-drafter', 'bfloat16')
  same(load_model(folder).params, want.params)
  done = launching.run('experiments.export', *flags)
  assert done.returncode == 2
  assert 'already holds a model; choose another' in done.stderr


def test_what_a_folder_cannot_hold_is_refused_and_nothing_is_left(tmp_path):
  model, params, tokenizer = load('tiny-drafter')
  unknown = small.reconfigure(model, use_post_ffw_norm=False)
  restricted = model.restrict_vocab(params, [0, 1, 2, 3, 300])
  for *some, said in (
    (model, restricted, 'a restricted vocabulary is not suppo'),
    (unknown, params, 'a Transformer with this configuration'),
  ):
    checkpoint = checkpoints.Checkpoint(*some, tokenizer)
    save = checkpoints.save_model, tmp_path / 'out', checkpoint
    assert said in conftest.refused('model', *save)
  assert not [*tmp_path.iterdir()]
