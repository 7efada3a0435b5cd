"""Registries: names, errors, plug-ins that the core never imports."""

import importlib.metadata
import numbers
import sys
import textwrap

import launching
import pytest

from cascades import methods, verification
from cascades.drafters import DRAFTERS
from cascades.registries import Registry, split

_REGISTRIES = (
  methods.METHODS,
  verification.VERIFICATIONS,
  DRAFTERS,
)


@pytest.fixture
def registry():
  made = Registry('colour', numbers.Real, aliases={'crimson': 'red'})
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
  vars(registry).pop('_points', None)


def test_entries_are_found_by_name_and_alias(registry):
  assert registry.get('red') == registry.get('crimson') == registry['red'] == 1
  assert registry.names() == tuple(registry) == ('red', 'blue')
  assert registry.get('green', None) is None
  with pytest.raises(ValueError, match=r"^colour: 'bleu' .* 'blue'\? Choose"):
    registry.get('bleu')
  with pytest.raises(KeyError):
    registry['crimson']
  for name in (None, 3, b'red', ('red',), '', 'r' * 10_000):
    assert name not in registry
    with pytest.raises(ValueError, match=r'^colour: ') as caught:
      registry.get(name)
    assert len(str(caught.value)) < 300
  # An entry that is removed leaves its name free.
  registry.unregister('blue')
  assert registry.register('blue', 5) == registry['blue'] == 5
  assert registry.find('red:3') == (1, '3')
  with pytest.raises(ValueError, match=r"^colour: 'red:' has nothing after"):
    registry.find('red:')
  assert split('first:C:/rules') == ('first', 'C:/rules')
  assert split('token') == ('token', '')


@pytest.mark.parametrize('name', ['red', 'crimson', 'first'])
def test_a_name_is_taken_once(monkeypatch, registry, name):
  _declare(monkeypatch, registry, ('first', 'a_package:ENTRY'))
  with pytest.raises(ValueError, match=f'^colour: the name {name!r} is taken'):
    registry.register(name, 3)
  assert registry.register('blue', registry['blue']) == 2


def test_a_plug_in_is_imported_when_its_name_is_used(
  monkeypatch, registry, tmp_path
):
  (tmp_path / 'made_up_plugin.py').write_text('GREEN = 7\n')
  monkeypatch.syspath_prepend(tmp_path)
  _declare(monkeypatch, registry, ('green', 'made_up_plugin:GREEN'))
  assert registry.names() == ('red', 'green', 'blue')
  assert 'green' in registry
  assert not registry.is_builtin('green')
  assert 'made_up_plugin' not in sys.modules
  assert registry.get('green') == 7
  assert registry.loaded() == (1, 2, 7)
  # In the same order as before.
  assert registry.names() == ('red', 'green', 'blue')


@pytest.mark.parametrize('first', [True, False])
def test_names_of_the_core_are_not_replaced(monkeypatch, first):
  made = Registry('colour', numbers.Real)
  _declare(monkeypatch, made, ('red', 'math:pi'), ('teal', 'math:e'))
  if first:
    # Whoever asks before the core has registered all of its own.
    assert made.names() == ('red', 'teal')
  assert made.register('red', 1, builtin=True) == made.get('red') == 1
  assert made.names() == ('red', 'teal')
  assert made.is_builtin('red')


@pytest.mark.parametrize(
  ('declared', 'said'),
  [
    (('no_such_package:X',), 'is declared by no_such_package:X, which cannot'),
    (('math:no_such_name',), 'is declared by math:no_such_name, which cannot'),
    (('broken_plugin:X',), 'is declared by broken_plugin:X, which cannot'),
    (('math:e', 'math:pi'), '.* math:e and math:pi; uninstall one of them'),
    (('math:sqrt',), 'math:sqrt declares, is a builtin_function'),
    (('fractions:Fraction',), 'is a ABCMeta'),
  ],
)
def test_what_is_no_entry_is_refused(
  monkeypatch, registry, tmp_path, declared, said
):
  (tmp_path / 'broken_plugin.py').write_text('X = {}["absent"]\n')
  monkeypatch.syspath_prepend(tmp_path)
  _declare(monkeypatch, registry, *(('teal', value) for value in declared))
  with pytest.raises(ValueError, match=f"^colour: 'teal'.*{said}"):
    registry.get('teal')
  # The others are there.
  with pytest.warns(UserWarning, match="^colour: 'teal'"):
    assert registry.available() == {'red': 1, 'blue': 2}


def test_what_cannot_be_a_name_is_refused(monkeypatch, registry):
  for name, entry in (('a:b', 1), ('', 1), ('a+b', 1), ('mauve', 'mauve')):
    with pytest.raises(ValueError, match=r'^colour: '):
      registry.register(name, entry)
  # A package that is installed twice is one.
  twice = ('teal', 'math:e')
  _declare(monkeypatch, registry, twice, twice, ('a b', 'math:pi'))
  assert registry.get('teal') > 2
  with pytest.raises(ValueError, match=r"^colour: 'a b'.*cannot be a name"):
    registry.get('a b')


@pytest.mark.parametrize('made', _REGISTRIES, ids=lambda r: r.option)
def test_every_entry_can_be_imported(made):
  assert made.names()
  for name in made.names():
    assert made.is_builtin(name)
    assert made.get(name) is not None


_CORE = """
  import sys
  import cascades
  from cascades import methods, verification_config
  sys.path[:0] = ['tests']
  import small

  assert not [m for m in sys.modules if m.startswith('cascades.contrib')]
  verifier, drafter = small.pair()
  core = {
    'method': [*methods.METHODS],
    'verification': (
      *verification_config.SINGLE_DRAFT,
      *verification_config.MULTI_DRAFT,
    ),
  }
  for name in core['method']:
    small.sampler(verifier, drafter, method=name, lenience=0)
  for name in core['verification']:
    many = 1 + (name in verification_config.MULTI_DRAFT)
    small.sampler(verifier, drafter, verification=name, drafts=many)
  for made in drafter, 'ngram', 'self:1':
    decoder = small.sampler(verifier, made, method='speed', lenience=0)
    assert decoder.sample('12', max_new_tokens=3).tokens
  loaded = [m for m in sys.modules if m.startswith('cascades.contrib')]
  assert not loaded, loaded

  for made, options in (
    (drafter, dict(verification='look_ahead:2')),
  ):
    usual = dict(method='opt', lenience=0.1, gamma=2)
    decoder = small.sampler(verifier, made, **usual, **options)
    assert decoder.sample('The number 12', max_new_tokens=6).tokens
"""


@pytest.mark.slow
def test_decoding_imports_plug_ins_as_they_are_named_and_none_before():
  done = launching.python('-c', textwrap.dedent(_CORE))
  assert done.returncode == 0, done.stderr
