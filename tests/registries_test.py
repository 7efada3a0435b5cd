"""Registries: names, errors, entries that are imported when they are named."""

import numbers
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


def test_entries_are_found_by_name_and_alias(registry):
  assert registry.get('red') == registry.get('crimson') == registry['red'] == 1
  assert registry.names() == tuple(registry) == ('red', 'blue')
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


_CORE = """
  import sys
  sys.path[:0] = ['tests']
  import small
  from cascades import drafters, methods, verification_config

  def loaded():
    return [m for m in sys.modules if m.startswith('cascades.contrib')]

  verifier, drafter = small.pair()
  core = [*methods.METHODS]
  for option, names in (
    ('method', core), ('verification', verification_config.SINGLE_DRAFT)
  ):
    for name in names:
      small.sampler(verifier, drafter, **dict(lenience=0) | {option: name})
  for made in drafter, 'ngram', 'self:1':
    decoder = small.sampler(verifier, made, method='speed', lenience=0)
    assert decoder.sample('12', max_new_tokens=3).tokens
  assert not loaded(), loaded()
  small.sampler(verifier, drafter, verification='look_ahead:2', lenience=0)
  assert loaded()
"""


@pytest.mark.slow
def test_the_core_imports_entries_of_contrib_as_they_are_named():
  done = launching.python('-c', textwrap.dedent(_CORE))
  assert done.returncode == 0, done.stderr
