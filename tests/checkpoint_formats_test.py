"""Tests of the registry of checkpoint formats, with a format from outside."""

import json
import pathlib
import shutil

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from safetensors.numpy import load_file, save_file

import cascades
from cascades.models import (
  bundled,
  checkpoint_formats,
  checkpoint_source,
  checkpoints,
  language,
  tokenizers,
)

_TINY = bundled.ASSETS / 'tiny-drafter'
_FORMATS = checkpoint_formats.CHECKPOINT_FORMATS


class ToySource:
  """A folder with gemma's parameter tree as arrays with dotted names."""

  def __init__(self, folder):
    config = json.loads((folder / 'toy.json').read_text())
    self.folder, self.model = folder, language.from_config(config)
    self.tokenizer = tokenizers.Tokenizer(
      (folder / 'toy.tokenizer').read_bytes(), config['stops']
    )

  def load(self, options):
    model, arrays = self.model, load_file(self.folder / 'toy.arrays')
    params = jax.tree_util.tree_map_with_path(
      lambda path, _: arrays[jax.tree_util.keystr(path)], model.param_shapes()
    )
    if options.pack:
      model = checkpoints.Checkpoint(model, params, self.tokenizer).pack().model
    place = checkpoint_source.place_params
    params = {x: place(model, (x,), y, options) for x, y in params.items()}
    return checkpoints.Checkpoint(model, params, self.tokenizer)


TOY = checkpoint_formats.CheckpointFormat(
  help='a folder with toy.json',
  matches=lambda name: (pathlib.Path(name) / 'toy.json').is_file(),
  make_source=lambda name: ToySource(pathlib.Path(name)),
  names=lambda: ('toy-model',),
)


@pytest.fixture
def registered():
  _FORMATS.register('toy', TOY)
  yield
  del _FORMATS['toy']


@pytest.fixture
def toy_folder(tmp_path):
  _, params, tokenizer = checkpoints.load_folder(_TINY)
  config = small.read_json(_TINY / 'config.json')
  config['stops'] = list(tokenizer.stops)
  arrays = {
    jax.tree_util.keystr(path): np.asarray(x)
    for path, x in jax.tree.leaves_with_path(params)
  }
  folder = tmp_path / 'toy'
  folder.mkdir()
  save_file(arrays, folder / 'toy.arrays')
  (folder / 'toy.json').write_text(json.dumps(config))
  (folder / 'toy.tokenizer').write_bytes(tokenizer.proto)
  return folder


def test_a_registered_format_is_loaded(toy_folder, registered):
  expected = checkpoints.load_model('tiny-drafter', 'float32')
  for name in (toy_folder, str(toy_folder), f'toy:{toy_folder}'):
    loaded = cascades.load_model(name, 'float32')
    assert loaded.model.layout == 'blocked'
    assert loaded.tokenizer == expected.tokenizer
    jax.tree.map(np.testing.assert_array_equal, loaded.params, expected.params)
  loaded = cascades.load_model(toy_folder, 'bfloat16').unpack()
  assert loaded.model.dtype(loaded.params) == jnp.bfloat16


def test_errors_name_the_formats(toy_folder, registered):
  message = conftest.refused('model', checkpoints.load_model, toy_folder.parent)
  for name, entry in _FORMATS.items():
    assert f'{name} ({entry.help})' in message
  message = conftest.refused('model', checkpoints.load_model, 'toy-modle')
  assert "did you mean 'toy-model'?" in message


def test_a_format_is_selected_where_several_match(toy_folder, tmp_path):
  folder = shutil.copytree(_TINY, tmp_path / 'both')
  for file in toy_folder.iterdir():
    shutil.copy(file, folder)
  (folder / '_METADATA').touch()
  message = conftest.refused('model', checkpoints.load_model, folder)
  assert 'matches the formats huggingface and orbax; select one' in message
  loaded = checkpoints.load_model(f'huggingface:{folder}')
  assert loaded.tokenizer == checkpoints.load_model(_TINY).tokenizer


def test_others_are_asked_where_no_format_of_the_library_matches(
  toy_folder, registered
):
  shutil.copytree(_TINY, toy_folder, dirs_exist_ok=True)
  source = checkpoint_formats.open_checkpoint(toy_folder)
  assert isinstance(source, checkpoint_source.TensorSource)
  source = checkpoint_formats.open_checkpoint(f'toy:{toy_folder}')
  assert isinstance(source, ToySource)


@pytest.mark.parametrize(
  ('name', 'format_name'),
  [
    ('tiny-verifier', 'bundled'),
    ('gemma3-270m', 'package'),
    ('gemma2-2b-it', 'gemma'),
    (_TINY, 'huggingface'),
    (str(_TINY), 'huggingface'),
    (bundled.ASSETS / 'gemma3-270m-multi30k-de-en', 'shared_table'),
  ],
)
def test_each_name_has_one_format(name, format_name):
  matching = [x for x, entry in _FORMATS.items() if entry.matches(name)]
  assert matching == [format_name]


def test_a_bundled_name_is_no_path(monkeypatch):
  monkeypatch.chdir(bundled.ASSETS)
  assert checkpoint_formats.local_path('tiny-drafter') is None
  for name in ('./tiny-drafter', pathlib.Path('tiny-drafter')):
    assert checkpoint_formats.local_path(name) == pathlib.Path('tiny-drafter')
