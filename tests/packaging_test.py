"""The package's metadata, and what happens where something is not installed."""

import re
import sys
import tomllib

import launching
import pytest
from small import ROOT

import experiments
from cascades import arguments
from cascades.models import checkpoints, gguf_files

_PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
_ABSENT = dict(sweep='pandas', accelerator='ml_collections')
_EXTRAS = _PROJECT['optional-dependencies']


def _required(requirements: list[str]) -> set[str]:
  """Names of required distributions, without versions and extras."""
  return {re.split(r'[\[<>=]', text)[0] for text in requirements}


def test_the_experiments_ask_for_what_their_extra_installs():
  needed = {x.replace('_', '-') for x in experiments.NEEDED} - {'absl'}
  names = {x.replace('_', '-') for x in _required(_EXTRAS['experiments'])}
  assert needed == names - {'absl-py'}


def test_every_dependency_is_pinned():
  lines = (ROOT / 'constraints.txt').read_text().split('\n')
  pinned = {line.partition('==')[0].replace('_', '-') for line in lines}
  wanted = _PROJECT['dependencies'] + [x for e in _EXTRAS.values() for x in e]
  names = {name.replace('_', '-') for name in _required(wanted)}
  assert names - pinned == {arguments.DISTRIBUTION}


def test_the_lowest_versions_are_tested():
  pins = (ROOT / '.ci/lowest.txt').read_text().split()
  bounds = [x for x in _PROJECT['dependencies'] if re.match('(jax|numpy)>', x)]
  assert len(bounds) == 2
  assert {x.replace('>=', '==') for x in bounds} <= {*pins}


def test_messages_name_the_extra_of_a_dependency(monkeypatch, tmp_path):
  named = set()
  for folder in ('cascades', 'experiments'):
    for path in (ROOT / folder).rglob('*.py'):
      text = path.read_text(encoding='utf-8')
      named |= set(re.findall(r"arguments\.missing\([^)]*'(\w+)'\)", text))
  assert {'eval', 'experiments', 'gguf', 'ray', 'wandb'} <= named <= {*_EXTRAS}
  assert arguments.missing('model', 'it', 'gguf') == (
    "model: it is not installed; run pip install -e '.[gguf]' in the checkout."
  )
  # Without a checkout, as a wheel is installed.
  monkeypatch.setattr(arguments, '_ROOT', tmp_path)
  assert arguments.missing('model', 'it', 'gguf') == (
    "model: it is not installed; run pip install 'speculative-cascades[gguf]'."
  )


def test_a_gguf_file_without_its_library_is_one_sentence(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gguf', None)
  with pytest.raises(ValueError, match=r'^model: gguf is not .*\[gguf\]') as e:
    gguf_files.library()
  assert '\n' not in str(e.value)


def test_a_model_beside_the_wheel_is_one_sentence(monkeypatch, tmp_path):
  monkeypatch.setattr(checkpoints, 'ASSETS', tmp_path)
  name, _ = checkpoints.BUNDLED_WITHOUT_TABLE
  with pytest.raises(ValueError, match=rf'cascades/assets/{name}\.$') as e:
    checkpoints.load_model(name)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(('command', 'absent'), _ABSENT.items())
def test_a_command_without_packages_is_one_sentence(command, absent, tmp_path):
  (tmp_path / 'sitecustomize.py').write_text(
    f'import sys\nsys.modules |= {{"{absent}": None, "sacrebleu": None}}\n'
  )
  flags, env = ('-m', f'experiments.{command}'), {'PYTHONPATH': str(tmp_path)}
  done = launching.python(*flags, '--help', env=env)
  assert done.returncode == 2
  assert done.stderr == (
    f'error: experiments: {absent} is not installed; run pip install'
    " -e '.[experiments]' in the checkout.\n"
  )
