"""Registries: names, errors, plug-ins that the core never imports."""

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from cascades import methods, schedules, verification
from cascades.drafters import specs
from cascades.methods import caps
from cascades.registries import OPTIONS, Option, Registry, split

_REGISTRIES = (
  methods.METHODS,
  schedules.SCHEDULES,
  verification.VERIFICATIONS,
  specs.DRAFTERS,
  caps.CAPS,
  OPTIONS,
)


@pytest.fixture
def registry():
  made = Registry('colour', aliases={'crimson': 'red'})
  made.register('red', 1, builtin=True)
  made.register('blue', 2)
  return made


def _declare(monkeypatch, registry, *declared):
  """Makes entry points, (name, value), those of the installed packages."""
  points = [
    importlib.metadata.EntryPoint(name, value, 'cascades.colours')
    for name, value in declared
  ]
  monkeypatch.setattr(
    importlib.metadata,
    'entry_points',
    lambda group: points if group == 'cascades.colours' else [],
  )
  # They were read as the first entry was registered.
  vars(registry).pop('_declared', None)


def test_entries_are_found_by_name_and_alias(registry):
  assert registry.get('red') == registry.get('crimson') == registry['red'] == 1
  assert registry.names() == tuple(registry) == ('red', 'blue')
  assert registry.get('green', None) is None
  with pytest.raises(ValueError, match=r"^colour: 'bleu' .* 'blue'\? There"):
    registry.get('bleu')
  with pytest.raises(KeyError):
    registry['crimson']


@pytest.mark.parametrize('name', [None, 3, b'red', ('red',), '', 'r' * 10_000])
def test_what_is_no_name_is_refused_in_a_sentence(registry, name):
  assert name not in registry
  with pytest.raises(ValueError, match=r'^colour: ') as caught:
    registry.get(name)
  assert len(str(caught.value)) < 300


@pytest.mark.parametrize('name', ['red', 'crimson', 'first'])
def test_a_name_is_taken_once(monkeypatch, registry, name):
  _declare(monkeypatch, registry, ('first', 'a_package:ENTRY'))
  with pytest.raises(ValueError, match=f'^colour: the name {name!r} is taken'):
    registry.register(name, 3)
  assert registry.register('blue', registry['blue']) == 2


def test_an_entry_that_is_removed_leaves_its_name_free(registry):
  registry.unregister('blue')
  assert registry.register('blue', 5) == registry['blue'] == 5


def test_a_plug_in_is_imported_when_its_name_is_used(
  monkeypatch, registry, tmp_path
):
  (tmp_path / 'made_up_plugin.py').write_text('GREEN = 7\n')
  monkeypatch.syspath_prepend(tmp_path)
  _declare(monkeypatch, registry, ('green', 'made_up_plugin:GREEN'))
  assert registry.names() == ('red', 'blue', 'green')
  assert 'green' in registry
  assert not registry.is_builtin('green')
  assert 'made_up_plugin' not in sys.modules
  assert registry.get('green') == 7
  assert registry.loaded() == (1, 2, 7)
  assert registry.names() == ('red', 'blue', 'green')


@pytest.mark.parametrize('value', ['no_such_package:X', 'math:no_such_name'])
def test_a_plug_in_that_cannot_be_imported_is_named(
  monkeypatch, registry, value
):
  _declare(monkeypatch, registry, ('green', value))
  with pytest.raises(ValueError, match=r"^colour: 'green' is declared by"):
    registry.get('green')
  # The others are there.
  assert registry.get('red') == 1


def test_names_of_the_core_are_not_replaced(monkeypatch, registry):
  _declare(monkeypatch, registry, ('red', 'math:pi'), ('teal', 'math:e'))
  with pytest.warns(UserWarning, match="'red', a name that is taken"):
    assert 'teal' in registry
  assert registry.get('red') == 1


def test_two_packages_that_declare_a_name_are_told(monkeypatch, registry):
  _declare(monkeypatch, registry, ('teal', 'math:e'), ('teal', 'math:pi'))
  with pytest.warns(UserWarning, match="'teal', a name that is taken"):
    assert registry.get('teal') > 2


def test_a_package_that_is_installed_twice_is_one(monkeypatch, registry):
  _declare(monkeypatch, registry, ('teal', 'math:e'), ('teal', 'math:e'))
  assert registry.get('teal') > 2


@pytest.mark.parametrize('made', _REGISTRIES, ids=lambda r: r.option)
def test_every_entry_can_be_imported(made):
  assert made.names()
  for name in made.names():
    assert made.is_builtin(name)
    assert made.get(name) is not None
  if made is OPTIONS:
    assert all(isinstance(x, Option) for x in made.values())


def test_a_name_has_an_argument_behind_its_colon():
  assert split('first:16') == ('first', '16')
  assert split('token') == ('token', '')
  assert split('learned:C:/rules') == ('learned', 'C:/rules')


_CORE = """
  import sys
  import cascades
  from cascades import methods, verification
  from cascades.drafters import specs
  import small

  assert not [m for m in sys.modules if m.startswith('cascades.contrib')]
  verifier, drafter = small.pair()
  core = {
    'method': [n for n in methods.METHODS if n != 'learned'],
    'verification': verification.SINGLE + verification.SEVERAL,
  }
  for name in core['method']:
    cascades.Sampler(verifier, drafter, method=name, lenience=0)
  for name in core['verification']:
    many = 1 + (name in verification.SEVERAL)
    cascades.Sampler(verifier, drafter, verification=name, drafts=many)
  for made in drafter, 'ngram', 'self:1':
    decoder = cascades.Sampler(verifier, made, method='speed', lenience=0)
    assert decoder.sample('12', max_new_tokens=3).tokens
  loaded = [m for m in sys.modules if m.startswith('cascades.contrib')]
  assert not loaded, loaded
"""


@pytest.mark.slow
def test_decoding_with_the_core_imports_no_plug_in():
  code = textwrap.dedent(_CORE)
  subprocess.run(
    [sys.executable, '-c', f"import sys; sys.path[:0] = ['tests']\n{code}"],
    check=True,
  )
