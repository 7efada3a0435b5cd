"""Imports go one way; these tests keep it so."""

import ast
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent

# For each module, which modules of cascades it may import.
_MAY_IMPORT = {
  'arguments': set(),
  'compilation': set(),
  'methods': {'methods', 'sampling'},
  'sampling': set(),
  'stats': set(),
  'records': set(),
  'sequence': {'records'},
  'tokenizers': set(),
  'models': set(),
  'tasks': {'records', 'tasks'},
  'metrics': {'records', 'stats', 'tasks'},
  'report': {'report', 'metrics', 'records', 'stats', 'tasks'},
  'verification': {'methods', 'sampling', 'verification'},
  'drafters': {'drafters', 'sampling'},
  'decoding': {'drafters', 'methods', 'sampling', 'verification'},
  'batching': {
    'decoding',
    'drafters',
    'methods',
    'sampling',
    'sharding',
    'verification',
  },
  'chain': {'decoding', 'drafters', 'methods', 'verification'},
  'heads': {'checkpoints', 'drafters'},
  'pairing': {'arguments', 'checkpoints', 'drafters', 'heads', 'tokenizers'},
  'checking': {
    'arguments',
    'batching',
    'checkpoints',
    'pairing',
    'sampler',
    'tokenizers',
  },
  'sharding': set(),
  'memory': {'batching', 'sharding'},
  'auditing': {
    'compilation',
    'drafters',
    'methods',
    'records',
    'sampling',
    'testing',
    'verification',
  },
  'testing': {'decoding', 'drafters', 'methods', 'sampling', 'verification'},
  'turns': {'tokenizers'},
  'huggingface': {'models', 'tokenizers'},
  'checkpoints': {
    'compilation',
    'huggingface',
    'models',
    'sharding',
    'tokenizers',
    'turns',
  },
  'costs': {'checkpoints', 'decoding', 'drafters', 'metrics', 'sampling'},
  'sampler': {
    'arguments',
    'batching',
    'checkpoints',
    'compilation',
    'decoding',
    'drafters',
    'memory',
    'methods',
    'pairing',
    'sampling',
    'sharding',
    'tokenizers',
    'turns',
    'verification',
  },
  'scoring': {
    'arguments',
    'batching',
    'decoding',
    'drafters',
    'methods',
    'pairing',
    'sampler',
    'sampling',
    'sharding',
    'verification',
  },
  'lm_eval': {'sampler', 'scoring', 'tokenizers'},
  'distillation': {
    'checkpoints',
    'drafters',
    'heads',
    'sampler',
    'tasks',
    'training',
  },
  'training': {
    'checkpoints',
    'huggingface',
    'models',
    'sampler',
    'tasks',
    'tokenizers',
  },
}


def _module(path: pathlib.Path) -> str:
  return path.relative_to(_ROOT / 'cascades').parts[0].removesuffix('.py')


def _imported(path: pathlib.Path) -> set[str]:
  """Full names of what a file imports, anywhere in it."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  return names


_FILES = [
  path
  for path in sorted((_ROOT / 'cascades').rglob('*.py'))
  if path != _ROOT / 'cascades/__init__.py'
]


@pytest.mark.parametrize('path', _FILES, ids=lambda p: p.stem)
def test_modules_import_only_what_is_below_them(path):
  module = _module(path)
  used = {
    name.split('.')[1]
    for name in _imported(path)
    if name.startswith('cascades.')
  }
  assert used <= _MAY_IMPORT[module], module


@pytest.mark.parametrize('path', _FILES, ids=lambda p: p.stem)
def test_gemma_is_imported_in_one_module_and_inside_functions(path):
  roots = {name.split('.')[0] for name in _imported(path)}
  if _module(path) != 'models':
    assert 'gemma' not in roots
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      assert 'gemma' not in ast.unparse(node)


def test_the_library_knows_no_flags_and_no_torch():
  for path in _FILES:
    roots = {name.split('.')[0] for name in _imported(path)}
    assert not roots & {'absl', 'experiments', 'configs', 'torch', 'pickle'}


def test_importing_the_package_costs_no_jax():
  code = (
    'import sys, cascades.records, cascades.metrics, cascades.report\n'
    'import cascades.tasks, experiments.sweep, experiments.trackers\n'
    'heavy = {"jax", "gemma", "tensorflow", "tensorboard", "wandb"}\n'
    'print(sorted(heavy & set(sys.modules)))'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == '[]'
