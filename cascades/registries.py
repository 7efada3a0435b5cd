"""Registries: named entries that an option can choose.

The core registers its own as it is imported, and a user's module, which
`--import=MODULE` runs in a command, registers others.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from cascades import arguments

_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_.-]*')


def split(spec: str) -> tuple[str, str]:
  """Splits 'look_ahead:6' into 'look_ahead' and an argument, '6', or ''."""
  name, _, argument = spec.partition(':')
  return name, argument


class Registry[Entry](dict[str, Entry]):
  """Entries of one kind by name; an unknown name is a ValueError.

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
    super().__init__()
    self.option, self.kind, self.aliases = option, kind, dict(aliases or {})
    self._core: set[str] = set()

  def register(self, name: str, entry: Entry, builtin: bool = False) -> Entry:
    """Adds an entry; `builtin` marks the library's own."""
    is_taken = self.get(name, entry) is not entry or name in self.aliases
    is_entry = isinstance(entry, self.kind)
    if is_taken or not is_entry or not _NAME.fullmatch(name):
      raise ValueError(
        f'{self.option}: {arguments.quote(name)} cannot be registered; give a'
        f' {self.kind.__name__}, and a name that is not taken, of letters,'
        ' digits, dots, hyphens and underscores.'
      )
    self[name] = entry
    if builtin:
      self._core.add(name)
    return entry

  def find(self, spec: str) -> tuple[Entry, str]:
    """Returns the entry of 'NAME' or 'NAME:ARGUMENT', and the argument."""
    name, argument = split(spec)
    if name not in self and name not in self.aliases:
      raise ValueError(self.unknown(spec))
    return self[name], argument

  def unknown(self, name: Any, option: str = '') -> str:
    """Returns the error for an unknown name, with the nearest and all names."""
    near = difflib.get_close_matches(
      str(name)[:99], [*self, *self.aliases], 1, 0.0
    )
    guess = f' did you mean {near[0]!r}?' if near else ''
    return (
      f'{option or self.option}: {arguments.quote(name)} is not known;{guess}'
      f' Choose from {", ".join(self)}.'
    )

  def core(self) -> dict[str, Entry]:
    """Returns the entries that the core registers."""
    return {name: entry for name, entry in self.items() if name in self._core}

  def is_builtin(self, name: str) -> bool:
    """True if an entry is the library's own."""
    return name in self._core

  def __missing__(self, name: str) -> Entry:
    if name not in self.aliases:
      raise ValueError(self.unknown(name))
    return self[self.aliases[name]]
