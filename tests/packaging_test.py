"""The package's metadata, and what happens where something is not installed."""

import pathlib
import re
import sys
import tomllib

import launching
import pytest
from imports_test import imported

import cascades
import experiments
from cascades import extras
from cascades.models import bundled, checkpoints, gguf_header

_ROOT = pathlib.Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
_EXTRAS = _PROJECT['optional-dependencies']
# Distributions that are not named after what they install.
_DISTRIBUTIONS = {
  'absl': 'absl-py',
  'huggingface_hub': 'huggingface-hub',
  'jaxlib': 'jax',
  'lm_eval': 'lm-eval',
  'orbax': 'orbax-checkpoint',
  'rouge_score': 'rouge-score',
}
# Optional dependencies of the library, by their extras.
_OPTIONAL = {'eval': 'lm-eval', 'gguf': 'gguf', 'hub': 'huggingface-hub'}
_OWN = {'cascades', 'configs', 'experiments'}


def _imported(folder: str) -> set[str]:
  """Distributions that the modules of a folder import, anywhere in them."""
  paths = (_ROOT / folder).rglob('*.py')
  names = {name for path in paths for name in imported(path)}
  names = {name.split('.')[0] for name in names} - _OWN
  names -= sys.stdlib_module_names
  return {_DISTRIBUTIONS.get(name, name) for name in names}


def _required(requirements: list[str]) -> set[str]:
  """Names of required distributions, without versions and extras."""
  return {re.split(r'[\[<>=]', text)[0] for text in requirements}


def test_the_library_depends_on_what_it_imports_and_on_no_more():
  optional = {*_OPTIONAL.values()}
  assert _required(_PROJECT['dependencies']) == _imported('cascades') - optional
  for extra, name in _OPTIONAL.items():
    assert _required(_EXTRAS[extra]) == {name}


def test_the_experiments_depend_on_what_they_import():
  given = _required(_PROJECT['dependencies'] + _EXTRAS['experiments'])
  assert (_imported('configs') | {'absl-py'}) <= given
  # What other engines are timed with has an environment of its own.
  elsewhere = {'torch', 'transformers', 'xllamacpp'}
  optional = _required(_EXTRAS['ray'] + _EXTRAS['wandb'] + _EXTRAS['eval'])
  # What the harness reads tasks and renders prompts with.
  optional |= {'jinja2', 'yaml'}
  assert _imported('experiments') - elsewhere - optional <= given
  needed = {_DISTRIBUTIONS.get(name, name) for name in experiments.NEEDED}
  assert needed == _required(_EXTRAS['experiments'])


def test_every_dependency_is_pinned():
  lines = (_ROOT / 'constraints.txt').read_text().split('\n')
  pinned = {line.partition('==')[0].replace('_', '-') for line in lines}
  wanted = _PROJECT['dependencies'] + [x for e in _EXTRAS.values() for x in e]
  names = {name.replace('_', '-') for name in _required(wanted)}
  assert names - pinned == {extras.DISTRIBUTION}


def test_the_lowest_versions_are_tested():
  pins = (_ROOT / '.ci/lowest.txt').read_text().split()
  bounds = [x for x in _PROJECT['dependencies'] if re.match('(jax|numpy)>', x)]
  assert len(bounds) == 2
  assert {x.replace('>=', '==') for x in bounds} <= {*pins}


def test_the_version_has_one_source():
  assert _PROJECT['name'] == extras.DISTRIBUTION
  assert 'version' in _PROJECT['dynamic']
  assert re.fullmatch(r'\d+\.\d+\.\d+', cascades.__version__)


@pytest.mark.parametrize(
  'extra', ['eval', 'gemma', 'gguf', 'hub', 'ray', 'wandb']
)
def test_a_message_names_the_extra_that_installs_a_dependency(
  extra, monkeypatch, tmp_path
):
  assert extra in _EXTRAS
  assert extras.missing('model', 'it', extra) == (
    f"model: it is not installed; run pip install -e '.[{extra}]' in the"
    ' checkout.'
  )
  # Without a checkout, as a wheel is installed.
  monkeypatch.setattr(extras, '_ROOT', tmp_path)
  assert extras.missing('model', 'it', extra) == (
    f'model: it is not installed; run pip install'
    f" 'speculative-cascades[{extra}]'."
  )


def test_extras_that_messages_name_are_declared():
  called = set()
  for folder in ('cascades', 'experiments'):
    for path in (_ROOT / folder).rglob('*.py'):
      text = path.read_text(encoding='utf-8')
      called |= set(re.findall(r"extras\.missing\([^)]*'(\w+)'\)", text))
  assert {'eval', 'experiments', 'gguf', 'ray', 'wandb'} <= called
  assert called <= {*_EXTRAS}


def test_a_gguf_file_without_its_library_is_one_sentence(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gguf', None)
  with pytest.raises(ValueError, match=r'^model: gguf is not .*\[gguf\]') as e:
    gguf_header.library()
  assert '\n' not in str(e.value)


def test_a_model_that_is_not_in_the_wheel_is_one_sentence(
  monkeypatch, tmp_path
):
  monkeypatch.setattr(bundled, 'ASSETS', tmp_path)
  (name,) = checkpoints.BUNDLED_WITHOUT_TABLE
  with pytest.raises(ValueError, match=rf'cascades/assets/{name}\.$') as e:
    checkpoints.load_model(name)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize('command', ['sweep', 'report', 'sample'])
def test_a_command_without_its_packages_is_one_sentence(command, tmp_path):
  (tmp_path / 'sitecustomize.py').write_text(
    'import sys\nsys.modules |= {"pandas": None, "sacrebleu": None}\n'
  )
  done = launching.python(
    *('-m', f'experiments.{command}', '--help'),
    env={'PYTHONPATH': str(tmp_path)},
  )
  assert done.returncode == 2
  assert done.stderr == (
    'error: experiments: pandas is not installed; run pip install'
    " -e '.[experiments]' in the checkout.\n"
  )


def test_importing_them_without_their_packages_is_an_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pandas', None)
  with pytest.raises(ModuleNotFoundError, match=r'pandas .*\[experiments\]'):
    experiments._check_installed()
