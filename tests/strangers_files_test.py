"""Tests of models, traces and task sets that come from strangers.

A stranger's file may be damaged, or made to do harm: what reads it refuses it
in one sentence.
"""

import gzip
import json
import os
import pathlib
import random
import shutil

import gguf_test
import launching
import pytest
import strangers

from cascades.contrib.engine_audits import traces
from cascades.drafters.recurrent import recurrent_checkpoint
from cascades.models import checkpoints, shared_table, tensor_files
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


# --- Models: GGUF files ---

# Ends early beyond 10 seconds, or 100 MB more than the first model took.
LOAD_WITHIN_LIMITS = """
import pathlib, resource, signal, sys
from cascades.models import checkpoints
model, other = sys.argv[1:]
checkpoints.load_model(model)
pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
most = pages * resource.getpagesize() + 100 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
signal.alarm(10)
try:
  checkpoints.load_model(other)
  print('loaded')
except ValueError as e:
  print(e)
"""


def claiming(kind, file, layers) -> pathlib.Path:
  """Changes a model so that it claims to have so many layers."""
  if kind == 'gguf':
    claim = gguf_test.with_field('gemma3.block_count', 'UINT32', layers)
    return gguf_test.rewritten(file, claim)
  path = file / 'config.json'
  fields = json.loads(path.read_text()) | {'num_hidden_layers': layers}
  write_json(path, fields | {'layer_types': None})
  return file


# Its own two; as many as are believed without the tensors; and more.
@pytest.mark.parametrize('layers', [2, 9_999, 200_000_000])
@pytest.mark.parametrize('kind', ['gguf', 'folder'])
def test_layers_that_are_claimed_take_no_memory(
  gguf_file, folder, tmp_path, kind, layers
):
  copy = shutil.copy(gguf_file, tmp_path / gguf_file.name)
  path = claiming(kind, copy if kind == 'gguf' else folder, layers)
  done = launching.python('-c', LOAD_WITHIN_LIMITS, MODEL, path)
  assert done.returncode == 0, done.stderr[-2000:]
  refused = layers > 2
  assert done.stdout.startswith(f'model: {path}' if refused else 'loaded\n')


# --- Models: files that name other files ---


@pytest.mark.parametrize('ring', [('one',), ('one', 'other')])
def test_models_that_share_a_table_in_a_ring_are_refused(tmp_path, ring):
  for name, owner in zip(ring, (*ring[1:], ring[0]), strict=True):
    shutil.copytree(MODEL, tmp_path / name)
    fields = {'verifier': str(tmp_path / owner), 'checksum': '0'}
    write_json(tmp_path / name / shared_table.FILE, fields)
  assert str(tmp_path) in gguf_test.refused(tmp_path / 'one')


@pytest.mark.parametrize(
  'name',
  ['config.json', 'model.safetensors', 'tokenizer.model', tensor_files.INDEX],
)
def test_a_pipe_in_the_place_of_a_file_is_no_file(folder, name):
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  assert str(folder) in gguf_test.refused(folder)


def test_layers_that_a_config_leaves_out_are_no_other_model(folder):
  # Its layers are those of a model that has more of them.
  path = folder / 'config.json'
  fields = json.loads(path.read_text())
  fields |= {'num_hidden_layers': 1, 'layer_types': fields['layer_types'][:1]}
  write_json(path, fields)
  assert 'of a layer beyond the 1 of' in gguf_test.refused(folder)


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
  shared_table.FILE: (copy_model, load_parent),
  'tokenizer.json': (copy_model_without_tokenizer, load_parent),
  'head.json': (os.mkdir, lambda path: recurrent_checkpoint.load(path.parent)),
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


def test_a_packed_trace_with_a_wrong_byte_is_damaged(tmp_path):
  draw = random.Random(0)
  block = dict(q=[[0.25, 0.75]], p=[[0.5, 0.5]] * 2, drafts=[0], tokens=[0, 1])
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


def test_an_error_writes_no_escape_sequences(folder):
  names = {'a': f'{HOSTILE}.safetensors'}
  write_json(folder / tensor_files.INDEX, {'weight_map': names})
  done = launching.run(
    'experiments.sample', f'--verifier={folder}', '--prompt=a'
  )
  assert done.returncode == 2
  assert done.stderr.startswith('error: model: ')
  assert not {'\x1b', '\x07'} & set(done.stderr)


@pytest.mark.parametrize('colour', [False, True])
def test_a_painted_answer_holds_no_escape_sequences_of_a_token(colour):
  painted = sample.paint([HOSTILE], [1], colour=colour)
  assert 'title' in painted
  assert '\x07' not in painted
  # A colour begins and ends with a sequence.
  assert painted.count('\x1b') == (2 if colour else 0)
