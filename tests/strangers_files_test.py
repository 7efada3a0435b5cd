"""Tests of models, traces and task sets that come from strangers.

A stranger's file may be damaged, or made to do harm: what reads it refuses it
in one sentence. An `xfail` for the reason `strangers` marks what is right and
fails today; `strict` turns the test red once the product is right.
"""

import gzip
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import zlib

import gguf
import gguf_test
import launching
import pytest
import strangers

from cascades import methods
from cascades.contrib.engine_audits import traces
from cascades.drafters import heads
from cascades.models import checkpoints, reduced, tensor_files
from experiments import sample
from experiments.analysis import runs
from experiments.tasks import TASKS

pytestmark = pytest.mark.slow
MODEL = checkpoints.ASSETS / 'tiny-drafter'


def write_json(path, value) -> None:
  path.write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path):
  """A copy of a bundled model."""
  return shutil.copytree(MODEL, tmp_path / 'model')


@pytest.fixture(scope='module')
def gguf_file(tmp_path_factory):
  """A GGUF file of a bundled model."""
  root = tmp_path_factory.mktemp('gguf')
  return gguf_test.written(root, 'tiny-drafter', 'float16')


# --- Models: config.json ---

NUMBERS = ('64', None, 2.5, [64], {'a': 1}, math.nan, -4)
CONFIG_WRONG = {
  'hidden_size': (*NUMBERS, 10**30),
  'intermediate_size': NUMBERS,
  'num_attention_heads': (*NUMBERS, 0),
  'num_key_value_heads': (*NUMBERS, 10**30),
  'head_dim': (*NUMBERS, 0),
  'vocab_size': ('64', None, [64], {'a': 1}, math.nan, 10**30),
  'sliding_window': ('48', [48], 10**30),
  'sliding_window_pattern': (0, '6'),
  'layer_types': (5, True),
  'final_logit_softcapping': ('30', [30]),
  'attn_logit_softcapping': ('50',),
  'rope_parameters': (
    *(5, 'default', [1], {'full_attention': 5}),
    {'full_attention': {'rope_theta': '1e5'}},
  ),
  'rope_scaling': ([1],),
  'model_type': (['gemma3_text'], {}),
}
# Refused today, in a sentence that may name another field.
CONFIG_REFUSED = {
  'num_hidden_layers': ('2', 2.5, None),
  'vocab_size': (2.5, -4),
}


def refuse_config(folder, field, value) -> str:
  """Returns the sentence that refuses a config.json with another value."""
  path = folder / 'config.json'
  fields = json.loads(path.read_text()) | {field: value}
  if field == 'sliding_window_pattern':
    # The pattern is read only without a list of layers.
    del fields['layer_types']
  write_json(path, fields)
  return gguf_test.refused(folder)


@pytest.mark.parametrize(('field', 'value'), strangers.cases(CONFIG_WRONG))
def test_a_wrong_value_in_a_config_is_refused_by_its_field(
  folder, field, value
):
  assert field in refuse_config(folder, field, value)


@pytest.mark.parametrize(('field', 'value'), strangers.cases(CONFIG_REFUSED))
def test_a_wrong_value_in_a_config_is_refused(folder, field, value):
  assert str(folder) in refuse_config(folder, field, value)


# --- Models: GGUF files ---

GGUF_NUMBERS = ('4', [4], 4.5, math.nan, -4, 2**63)
GGUF_WRONG = {
  'gemma3.embedding_length': (*GGUF_NUMBERS, 2**32 - 1),
  'gemma3.feed_forward_length': GGUF_NUMBERS,
  'gemma3.attention.head_count': (*GGUF_NUMBERS, 0),
  'gemma3.attention.head_count_kv': GGUF_NUMBERS,
  'gemma3.attention.key_length': ('4', [4], 4.5, -4, 2**63, 0),
  'gemma3.block_count': ('2', [2], 2.0),
  'gemma3.attention.sliding_window': ('48', [48], 2**32 - 1),
  'gemma3.attention.sliding_window_pattern': ('abc',),
  'gemma3.rope.freq_base': ('1e6',),
  'gemma3.rope.scaling.factor': ('2',),
  'split.count': ('2',),
}
# Refused today, in a sentence that names another field.
GGUF_REFUSED = {'gemma3.attention.key_length': (math.nan,)}


def gguf_types(value) -> list[gguf.GGUFValueType]:
  """Returns the types that a GGUF header gives a value."""
  kinds = gguf.GGUFValueType
  if isinstance(value, str):
    return [kinds.STRING]
  if isinstance(value, list):
    return [kinds.ARRAY, kinds.UINT32]
  if isinstance(value, float):
    return [kinds.FLOAT32]
  if value < 0:
    return [kinds.INT32]
  return [kinds.UINT32 if value < 2**32 else kinds.UINT64]


def with_field(file, folder, field, value) -> pathlib.Path:
  """Writes a GGUF file again, with another value of a field."""

  def change(fields):
    fields[field] = gguf_types(value), value

  return gguf_test.rewritten(shutil.copy(file, folder / file.name), change)


@pytest.mark.parametrize(('field', 'value'), strangers.cases(GGUF_WRONG))
def test_a_wrong_field_of_a_gguf_file_is_refused_by_file_and_field(
  gguf_file, tmp_path, field, value
):
  path = with_field(gguf_file, tmp_path, field, value)
  sentence = gguf_test.refused(path)
  assert str(path) in sentence
  assert field.removeprefix('gemma3.') in sentence


@pytest.mark.parametrize(('field', 'value'), strangers.cases(GGUF_REFUSED))
def test_a_wrong_field_of_a_gguf_file_is_refused(
  gguf_file, tmp_path, field, value
):
  path = with_field(gguf_file, tmp_path, field, value)
  assert str(path) in gguf_test.refused(path)


# Ends early beyond 10 seconds, or 500 MB more than the first model took.
LOAD_WITHIN_LIMITS = """
import pathlib, resource, signal, sys
from cascades.models import checkpoints
model, other = sys.argv[1:]
checkpoints.load_model(model)
pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
most = pages * resource.getpagesize() + 500 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
signal.alarm(10)
try:
  checkpoints.load_model(other)
  print('loaded')
except ValueError as e:
  print(e)
"""


def load_within_limits(gguf_file, folder, layers) -> tuple[pathlib.Path, str]:
  """Loads a GGUF file that claims some layers, in a process of its own.

  Returns:
    The file, and what the process prints: 'loaded', or the error's sentence.
  """
  path = with_field(gguf_file, folder, 'gemma3.block_count', layers)
  assert path.stat().st_size < 2**20
  done = subprocess.run(
    [sys.executable, '-c', LOAD_WITHIN_LIMITS, str(gguf_file), str(path)],
    capture_output=True,
    text=True,
    cwd=pathlib.Path(__file__).parents[1],
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return path, done.stdout


def test_a_gguf_file_with_its_own_layers_loads_within_limits(
  gguf_file, tmp_path
):
  assert load_within_limits(gguf_file, tmp_path, 2)[1] == 'loaded\n'


def test_a_gguf_file_that_claims_many_layers_takes_no_memory_for_them(
  gguf_file, tmp_path
):
  path, sentence = load_within_limits(gguf_file, tmp_path, 200_000_000)
  assert sentence.startswith('model: ')
  assert str(path) in sentence


# --- Models: files that name other files ---


@pytest.mark.parametrize('absolute', [False, True])
def test_an_index_names_no_file_out_of_its_folder(folder, absolute):
  weights = folder / 'model.safetensors'
  outside = shutil.copy(weights, folder.parent / 'outside.safetensors')
  # All other tensors lie in the folder: nothing else is wrong.
  names = dict.fromkeys(tensor_files.places(folder), weights.name)
  names['model.norm.weight'] = (
    str(outside) if absolute else '../outside.safetensors'
  )
  write_json(folder / tensor_files.INDEX, {'weight_map': names})
  assert str(folder / tensor_files.INDEX) in gguf_test.refused(folder)


@pytest.mark.xfail(strict=True, reason='strangers', raises=RecursionError)
@pytest.mark.parametrize('ring', [('one',), ('one', 'other')])
def test_models_that_share_a_table_in_a_ring_are_refused(tmp_path, ring):
  for name, owner in zip(ring, (*ring[1:], ring[0]), strict=True):
    shutil.copytree(MODEL, tmp_path / name)
    fields = {'verifier': str(tmp_path / owner), 'checksum': '0'}
    write_json(tmp_path / name / reduced.FILE, fields)
  assert str(tmp_path) in gguf_test.refused(tmp_path / 'one')


# --- JSON that is nested too deeply ---

DEEP = '{"a": ' + '[' * 100_000 + ']' * 100_000 + '}\n'


def copy_model(folder) -> None:
  shutil.copytree(MODEL, folder)


def copy_model_without_tokenizer(folder) -> None:
  copy_model(folder)
  # Beside this file tokenizer.json is not read.
  (folder / 'tokenizer.model').unlink()


def load_parent(path):
  return checkpoints.load_model(path.parent)


# By the name of a file: what makes its folder, and what reads it.
DEEP_FILES = {
  'config.json': (copy_model, load_parent),
  'generation_config.json': (copy_model, load_parent),
  tensor_files.INDEX: (copy_model, load_parent),
  reduced.FILE: (copy_model, load_parent),
  'tokenizer.json': (copy_model_without_tokenizer, load_parent),
  'head.json': (os.mkdir, lambda path: heads.load(path.parent)),
  'rule.json': (
    os.mkdir,
    lambda path: methods.get_method(f'learned:{path.parent}'),
  ),
  'blocks.jsonl': (os.mkdir, lambda path: traces.certify(path, 'speed')),
  'test.jsonl': (
    os.mkdir,
    lambda path: list(TASKS['gsm8k'].load(num_examples=1, path=str(path))),
  ),
  'records/all.jsonl': (
    strangers.make_workdir,
    lambda path: runs.read(path.parents[1]),
  ),
  # A workdir's; a model's has the same name.
  './config.json': (
    strangers.make_workdir,
    lambda path: runs.read(path.parent),
  ),
}


@pytest.mark.xfail(strict=True, reason='strangers', raises=RecursionError)
@pytest.mark.parametrize(
  ('name', 'make', 'read'),
  [(name, *functions) for name, functions in DEEP_FILES.items()],
  ids=DEEP_FILES,
)
def test_json_that_is_nested_deeply_is_refused(tmp_path, name, make, read):
  folder = tmp_path / 'deep'
  make(folder)
  path = folder / name
  path.write_text(DEEP)
  with pytest.raises(ValueError, match=r'^\S+: ') as error:
    read(path)
  assert '\n' not in str(error.value)
  assert str(path.parent) in str(error.value)


# --- Traces of engines ---


@pytest.mark.xfail(strict=True, reason='strangers', raises=zlib.error)
def test_a_packed_trace_with_a_wrong_byte_is_damaged(tmp_path):
  draw = random.Random(0)
  block = {
    'q': [[0.25, 0.75]],
    'p': [[0.5, 0.5], [0.5, 0.5]],
    'drafts': [0],
    'tokens': [0, 1],
  }
  # Numbers that do not repeat fill most of the packed bytes.
  lines = [json.dumps(block | {'note': draw.random()}) for _ in range(200)]
  packed = gzip.compress(('\n'.join(lines) + '\n').encode(), mtime=0)
  path = tmp_path / 'blocks.jsonl.gz'
  path.write_bytes(packed)
  assert len(list(traces.read(path))) == len(lines)
  # The ten bytes of the header come first; its time may be any.
  for index in range(10, len(packed), len(packed) // 150):
    damaged = bytearray(packed)
    damaged[index] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'^trace: ') as error:
      list(traces.read(path))
    assert str(path) in str(error.value)


# --- Terminals ---

HOSTILE = '\x1b]0;title\x07\x1b[2J'


@pytest.mark.xfail(strict=True, reason='strangers', raises=AssertionError)
def test_an_error_writes_no_escape_sequences(folder):
  names = {'a': f'{HOSTILE}.safetensors'}
  write_json(folder / tensor_files.INDEX, {'weight_map': names})
  done = launching.run(
    'experiments.sample', f'--verifier={folder}', '--prompt=a'
  )
  assert done.returncode == 2
  assert done.stderr.startswith('error: model: ')
  assert not {'\x1b', '\x07'} & set(done.stderr)


@pytest.mark.xfail(strict=True, reason='strangers', raises=AssertionError)
@pytest.mark.parametrize('colour', [False, True])
def test_a_painted_answer_holds_no_escape_sequences_of_a_token(colour):
  painted = sample.paint([HOSTILE], [1], colour=colour)
  assert 'title' in painted
  assert '\x07' not in painted
  # A colour begins and ends with a sequence.
  assert painted.count('\x1b') == (2 if colour else 0)
