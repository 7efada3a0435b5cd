"""Registries: named entries that an option can choose.

A registry holds entries of one kind by name. The core registers its own as it
is imported, and a user's module registers others: `DRAFTERS.register(name,
entry)`, which `--import=MODULE` runs in a command.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cascades import arguments

# Marks that no default was given.
_REFUSE = object()
# Separates a name from its argument, as in 'look_ahead:6'.
_COLON = ':'
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_.-]*')


def split(spec: str) -> tuple[str, str]:
  """Splits 'look_ahead:6' into a name, 'look_ahead', and an argument, '6'.

  The argument is empty where there is none.
  """
  name, _, argument = spec.partition(_COLON)
  return name, argument


class Registry[Entry](Mapping[str, Entry]):
  """Entries of one kind by name: a mapping.

  Attributes:
    option: The option that takes the names as values; begins error messages.
    kind: The type of every entry.
    aliases: Entry names by their other names.
  """

  def __init__(
    self,
    option: str,
    kind: type[Entry],
    aliases: Mapping[str, str] | None = None,
  ):
    self.option = option
    self.kind = kind
    self.aliases = dict(aliases or {})
    self._entries: dict[str, Entry] = {}
    # The library's own entries.
    self._core: dict[str, Entry] = {}

  def register(self, name: str, entry: Entry, builtin: bool = False) -> Entry:
    """Adds an entry."""
    arguments.instance('name', name, str, 'a text')
    if not _NAME.fullmatch(name):
      raise ValueError(
        f'{self.option}: {arguments.quote(name)} cannot be a name; take'
        ' letters, digits, dots, hyphens and underscores.'
      )
    if not isinstance(entry, self.kind):
      raise ValueError(
        f'{self.option}: {name!r} is a {type(entry).__name__}; give a'
        f' {self.kind.__name__}.'
      )
    entry_name = getattr(entry, 'name', name)
    if entry_name != name:
      raise ValueError(
        f'{self.option}: {name!r} has the name {arguments.quote(entry_name)};'
        ' give both the same name.'
      )
    is_other = self._entries.get(name, entry) is not entry
    if is_other or name in self.aliases:
      raise ValueError(
        f'{self.option}: the name {name!r} is taken; choose another.'
      )
    self._entries[name] = entry
    if builtin:
      self._core[name] = entry
    return entry

  def unregister(self, name: str) -> None:
    """Removes an entry that `register` added."""
    del self._entries[name]

  def get(self, name: Any, default: Any = _REFUSE) -> Entry:
    """Returns the entry of a name or an alias."""
    canonical = self.aliases.get(name, name) if isinstance(name, str) else None
    if canonical in self._entries:
      return self._entries[canonical]
    if default is not _REFUSE:
      return default
    raise ValueError(self.unknown(name))

  def find(self, spec: str) -> tuple[Entry, str]:
    """Returns the entry of 'NAME:ARGUMENT', and the argument."""
    name, argument = split(spec) if isinstance(spec, str) else ('', '')
    if name not in self and name not in self.aliases:
      raise ValueError(self.unknown(spec))
    if spec.endswith(_COLON) and not argument:
      raise ValueError(
        f'{self.option}: {arguments.quote(spec)} has nothing after its colon;'
        ' leave the colon out or give an argument.'
      )
    return self.get(name), argument

  def unknown(self, name: Any, option: str = '') -> str:
    """Returns the error for an unknown name, with the nearest and all names."""
    known_names = [*self, *self.aliases]
    text, _ = split(name[:99]) if isinstance(name, str) else ('', '')
    near = difflib.get_close_matches(text, known_names, 1, 0.0)
    guess = f' did you mean {near[0]!r}?' if near else ''
    return (
      f'{option or self.option}: {arguments.quote(name)} is not known;{guess}'
      f' Choose from {", ".join(self)}.'
    )

  def core(self) -> dict[str, Entry]:
    """Returns the entries that the core registers."""
    return dict(self._core)

  def is_builtin(self, name: str) -> bool:
    """True if an entry is the library's own."""
    return name in self._core

  def __getitem__(self, name: str) -> Entry:
    return self._entries[name]

  def __contains__(self, name: object) -> bool:
    return isinstance(name, str) and name in self._entries

  def __iter__(self) -> Iterator[str]:
    return iter(self._entries)

  def __len__(self) -> int:
    return len(self._entries)
