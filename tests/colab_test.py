"""Versions that a notebook keeps in Colab, and addresses of its badge."""

import pathlib
import tomllib

import pytest

from notebooks import colab_setup

_ROOT = pathlib.Path(__file__).parents[1]
_DEPENDENCIES = ['flax', 'jax>=0.6', 'numpy>=2.0']
_PINS = [
  'chex==3',
  'flax==3',
  'jax==0.12',
  'jax-cuda12-pjrt==0.12',
  'jax-cuda12-plugin==0.12',
  'jax-cuda13-plugin==0.12',
  'jaxlib==0.12',
  'libtpu==0.12',
  'ml-collections==3 ; python_version > "3"',
  'numpy==2.5',
  'scipy==3',
  'tifffile==3',
]
_CUDA = {
  'jax': '0.7.2',
  'jaxlib': '0.7.2',
  'jax-cuda12-pjrt': '0.7.2',
  'jax-cuda12-plugin': '0.7.2',
  'numpy': '2.0.2',
}
_KEPT = [
  'jax==0.7.2',
  'jaxlib==0.7.2',
  'jax-cuda12-plugin==0.7.2',
  'jax-cuda12-pjrt==0.7.2',
  'numpy==2.0.2',
]


def _plan(installed):
  tied = ('chex', 'flax', 'jax', 'jaxlib', 'numpy', 'tifffile')
  return colab_setup.plan(
    installed, _PINS, _DEPENDENCIES, ('experiments',), tied=tied
  )


def _pinned(installed):
  return [pin.partition('==')[0] for pin in _plan(installed).pins]


def test_a_new_enough_jax_is_kept_with_its_plugin_and_numpy():
  plan = _plan(_CUDA)
  assert plan.extras == ('experiments',)
  assert plan.kept == _KEPT
  assert plan.sentence == f'Keeps {", ".join(_KEPT)}.'
  assert _plan({**_CUDA, 'jax': '0.6.0.dev20250101'}).kept == []


def test_pins_are_of_what_is_missing_and_does_not_follow_jax():
  assert _pinned(_CUDA) == [
    'jax-cuda13-plugin', 'libtpu', 'ml-collections', 'scipy'
  ]  # fmt: skip
  assert 'scipy' not in _pinned(_CUDA | {'scipy': '2'})
  assert _plan(_CUDA).pins[2].endswith('; python_version > "3"')
  # With the pinned JAX all pins fit.
  pinned = {'jax': '0.12', 'jaxlib': '0.12', 'numpy': '2.5'}
  assert {'chex', 'flax', 'tifffile'} <= {*_pinned(pinned)}


@pytest.mark.parametrize(
  ('plugin', 'extra'),
  [('jax-cuda12-plugin', 'cuda12'), ('libtpu', 'tpu'), (None, None)],
)
def test_an_old_jax_is_replaced_with_its_plugin(plugin, extra):
  installed = {
    'jax': '0.5.3',
    'jaxlib': '0.5.3',
    'numpy': '2.0.2',
    'scipy': '2',
  }
  plan = _plan(installed | ({plugin: '0.5.3'} if plugin else {}))
  assert plan.extras == ('experiments', *filter(None, [extra]))
  assert plan.kept == []
  assert plan.pins == _PINS
  named = f'{plugin}==0.12, ' if plugin else ''
  assert plan.sentence == (
    f'Installs jax==0.12, jaxlib==0.12, {named}numpy==2.5: jax 0.5.3 is not'
    ' >=0.6.'
  )


def test_an_old_numpy_alone_is_replaced():
  plan = _plan(_CUDA | {'numpy': '1.26.4'})
  assert plan.kept == _KEPT[:-1]
  assert 'numpy==2.5' in plan.pins
  assert plan.sentence.endswith(
    '. Installs numpy==2.5: numpy 1.26.4 is not >=2.0.'
  )
  assert _plan({}).sentence.endswith(
    ': jax is not installed, numpy is not installed.'
  )


def test_what_is_kept_is_of_the_projects_own_files():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
  pins = (_ROOT / 'constraints.txt').read_text().splitlines()
  tied = colab_setup.lowest_versions()
  plan = colab_setup.plan(_CUDA, pins, project['dependencies'], tied=tied)
  assert 'flax' in tied
  assert not any(pin.startswith('flax==') for pin in plan.pins)
  assert plan.kept == _KEPT
  assert {*colab_setup.EXTRAS} <= {*project['optional-dependencies']}


def test_badge_and_field_have_the_address():
  text = (
    "[colab]: https://colab.research.google.com/github/\nREPOSITORY = ''  #"
  )
  address = 'https://github.com/owner/name'
  changed = colab_setup.with_address(text, 'agreement', f'{address}.git')
  assert changed == (
    '[colab]: https://colab.research.google.com/github/owner/name/blob/main/'
    f"notebooks/agreement.ipynb\nREPOSITORY = '{address}.git'  #"
  )
  assert colab_setup.with_address(changed, 'agreement', '') == text
  # Colab opens no notebooks of other hosts.
  other = colab_setup.with_address(text, 'agreement', 'https://git.example/x')
  assert other.startswith(text.partition('\n')[0] + '\n')


@pytest.mark.parametrize('suffix', ['.py', '.ipynb'])
def test_notebooks_have_the_address_of_the_project(suffix):
  address = colab_setup.project_address()
  for path in (_ROOT / 'notebooks').glob('*.ipynb'):
    text = path.with_suffix(suffix).read_text()
    assert '[colab]: ' in text
    assert text == colab_setup.with_address(text, path.stem, address)
