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
  assert registry['red'] == registry['crimson'] == 1
  assert tuple(registry) == ('red', 'blue')
  assert registry.core() == {'red': 1}
  assert not registry.is_builtin('blue')
  with pytest.raises(ValueError, match=r"^colour: 'bleu' .* 'blue'\? Choose"):
    registry['bleu']
  for name in (None, 3, b'red', ('red',), '', 'r' * 10_000):
    with pytest.raises(ValueError, match=r'^colour: ') as caught:
      registry[name]
    assert len(str(caught.value)) < 300
  assert registry.find('red:3') == (1, '3')
  assert split('first:C:/rules') == ('first', 'C:/rules')
  assert split('token') == ('token', '')
  assert registry.register('blue', registry['blue']) == 2


@pytest.mark.parametrize(
  ('name', 'entry'),
  [('red', 3), ('crimson', 3), ('a:b', 1), ('', 1), ('mauve', 'mauve')],
)
def test_what_is_no_entry_is_refused(registry, name, entry):
  with pytest.raises(
    ValueError, match=r'^colour: .* cannot be registered; give'
  ):
    registry.register(name, entry)


@pytest.mark.parametrize('made', _REGISTRIES, ids=lambda r: r.option)
def test_every_entry_can_be_imported(made):
  for name, entry in made.items():
    assert made.is_builtin(name)
    assert isinstance(entry, made.kind)
    assert getattr(entry, 'name', name) == name
