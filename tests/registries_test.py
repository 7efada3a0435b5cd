"""Registries: names, errors."""

import numbers

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


def test_entries_are_found_by_name_and_alias(registry):
  assert registry.get('red') == registry.get('crimson') == registry['red'] == 1
  assert tuple(registry) == ('red', 'blue')
  assert registry.is_builtin('red')
  assert not registry.is_builtin('blue')
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


@pytest.mark.parametrize(
  ('name', 'entry', 'said'),
  [
    ('red', 3, "the name 'red' is taken"),
    ('crimson', 3, "the name 'crimson' is taken"),
    ('a:b', 1, "'a:b' cannot be a name"),
    ('', 1, "'' cannot be a name"),
    ('mauve', 'mauve', "'mauve' is a str; give a Real"),
  ],
)
def test_what_is_no_entry_is_refused(registry, name, entry, said):
  with pytest.raises(ValueError, match=f'^colour: {said}'):
    registry.register(name, entry)
  assert registry.register('blue', registry['blue']) == 2


@pytest.mark.parametrize('made', _REGISTRIES, ids=lambda r: r.option)
def test_every_entry_can_be_imported(made):
  for name, entry in made.items():
    assert made.is_builtin(name)
    assert isinstance(entry, made.kind)
    assert getattr(entry, 'name', name) == name
