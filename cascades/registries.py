"""Registries: what an option can name, with room for plug-ins.

A registry holds entries of one kind by name. The core registers its own as it
is imported. A plug-in declares its entries as entry points of the registry's
group, in the metadata of its package:

  [project.entry-points."cascades.schedules"]
  first = "cascades.contrib.lenience_schedules:FIRST"

The module is imported when the name is first used, so the core needs to import
no plug-in. `cascades.contrib` is declared in the same way as a package of
somebody else.
"""

import dataclasses
import difflib
import functools
import importlib.metadata
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cascades import arguments, extras

# Marks that no default was given.
_REFUSE = object()
# Between a name and its argument, as in 'first:16'.
_COLON = ':'
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_.-]*')


def split(spec: str) -> tuple[str, str]:
  """Splits 'first:16' into a name, 'first', and an argument, '16'.

  The argument is empty where there is none.
  """
  name, _, argument = spec.partition(_COLON)
  return name, argument


class Registry[Entry](Mapping[str, Entry]):
  """Entries of one kind by name.

  A mapping of all names, those that plug-ins declare included; looking one of
  these up imports its plug-in.

  Args:
    option: The option whose values the entries are; begins error messages.
    kind: The type of every entry.
    aliases: Other names of entries.
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
    # Names and values of the library's own entries.
    self._builtin: dict[str, Any] = {}

  @property
  def group(self) -> str:
    """The group of entry points that plug-ins declare entries in."""
    return f'cascades.{self.option}s'

  def register(self, name: str, entry: Entry, builtin: bool = False) -> Entry:
    """Adds an entry.

    Args:
      name: What options call it.
      entry: The object that the name stands for.
      builtin: True for entries of the core.

    Returns:
      The entry.

    Raises:
      ValueError: Another entry has the name, or it cannot be a name.
    """
    arguments.instance('name', name, str, 'a text')
    self._check(name, entry)
    taken = name in self.aliases or (
      self._entries[name] is not entry
      if name in self._entries
      # The core is registered before anybody asks what plug-ins declare.
      else not builtin and name in self._declared
    )
    if taken:
      raise ValueError(
        f'{self.option}: the name {name!r} is taken; choose another.'
      )
    self._entries[name] = entry
    if builtin:
      self._builtin[name] = entry
    return entry

  def unregister(self, name: str) -> None:
    """Removes an entry that `register` added."""
    del self._entries[name]

  def get(self, name: str, default: Any = _REFUSE) -> Entry:
    """Returns the entry of a name or an alias; imports a plug-in if need be.

    Args:
      name: The name.
      default: Returned where there is no such entry, instead of an error.

    Raises:
      ValueError: There is no such entry; the message has the nearest names.
    """
    own = self.aliases.get(name, name) if isinstance(name, str) else None
    if own in self._entries:
      return self._entries[own]
    if own in self._declared:
      return self._load(own)
    if default is not _REFUSE:
      return default
    raise ValueError(self.unknown(name))

  def find(self, spec: str, option: str = '') -> tuple[Entry, str]:
    """Returns the entry of 'NAME:ARGUMENT', and the argument.

    Args:
      spec: The name, and maybe an argument.
      option: Names the option in errors, where it is another than usual.

    Raises:
      ValueError: There is no such entry, which the message has the nearest
        names of, or nothing follows the colon.
    """
    name, argument = split(spec) if isinstance(spec, str) else ('', '')
    if name not in self and name not in self.aliases:
      raise ValueError(self.unknown(spec, option))
    if spec.endswith(_COLON) and not argument:
      raise ValueError(
        f'{option or self.option}: {arguments.quote(spec)} has nothing after'
        ' its colon; leave the colon out or give an argument.'
      )
    return self.get(name), argument

  def unknown(self, name: Any, option: str = '') -> str:
    """Says that a name is not known, which is nearest, and which there are."""
    every = [*self.names(), *self.aliases]
    text, _ = split(name[:99]) if isinstance(name, str) else ('', '')
    near = difflib.get_close_matches(text, every, 1, 0.0)
    guess = f' did you mean {near[0]!r}?' if near else ''
    return (
      f'{option or self.option}: {arguments.quote(name)} is not known;{guess}'
      f' There are {", ".join(self.names())}.'
    )

  def names(self) -> tuple[str, ...]:
    """Names of all entries, also of plug-ins that were not imported yet."""
    # In one order, whatever was imported before.
    return tuple(self._builtin | self._declared | self._entries)

  def loaded(self) -> tuple[Entry, ...]:
    """Entries that are registered, or were imported since."""
    return tuple(self._entries.values())

  def available(self) -> dict[str, Entry]:
    """All entries by name; warns of plug-ins that cannot be imported.

    For whatever goes through all of them: only who asks for the name of a
    broken plug-in is refused.
    """
    found = {}
    for name in self.names():
      try:
        found[name] = self.get(name)
      except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
    return found

  def is_builtin(self, name: str) -> bool:
    """Whether the library itself has an entry, and it was not replaced."""
    if name in self._builtin:
      return self._entries[name] is self._builtin[name]
    point = self._declared.get(name)
    return point is not None and _is_ours(point)

  def origin(self, name: str) -> tuple[str, str] | None:
    """Name and version of the package that declares a plug-in; None if none."""
    point = self._declared.get(name)
    dist = point and point.dist
    return (dist.name, dist.version) if dist else None

  @functools.cached_property
  def _points(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
    """Entry points of plug-ins by name, the library's own first.

    A package that is installed twice is one; of others with one name there are
    several.
    """
    points: dict[str, list] = {}
    every = importlib.metadata.entry_points(group=self.group)
    for point in sorted(every, key=lambda x: (not _is_ours(x), x.value)):
      others = points.setdefault(point.name, [])
      if not others or (
        point.value != others[-1].value and not _is_ours(others[0])
      ):
        others.append(point)
    return points

  @property
  def _declared(self) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry point of each name that only plug-ins have."""
    return {
      name: self._points[name][0]
      for name in sorted(self._points)
      if name not in self._builtin and name not in self.aliases
    }

  def _load(self, name: str) -> Entry:
    """Imports the plug-in that declares a name.

    Raises:
      ValueError: Several packages declare the name, or its package cannot be
        imported or has no such entry.
    """
    point, *others = self._points[name]
    if others:
      packages = ' and '.join(map(_package, (point, *others)))
      raise ValueError(
        f'{self.option}: {name!r} is declared by {packages}; uninstall one of'
        ' them.'
      )
    try:
      entry = point.load()
    # What somebody else wrote can fail in any way as it is imported.
    except Exception as error:
      reason = ' '.join(f'{type(error).__name__}: {error}'.split()).rstrip('.')
      raise ValueError(
        f'{self.option}: {name!r} is declared by {_package(point)}, which'
        f' cannot be imported ({reason}); install what it needs, update it or'
        ' uninstall it.'
      ) from error
    self._check(name, entry, f', which {_package(point)} declares')
    self._entries[name] = entry
    return entry

  def _check(self, name: str, entry: Any, who: str = '') -> None:
    """Refuses a name that no option can have, and what is no entry.

    Args:
      name: The entry's name.
      entry: What it stands for.
      who: Who declares it, in words.

    Raises:
      ValueError: It is of another type, or has another name of its own.
    """
    if not _NAME.fullmatch(name):
      raise ValueError(
        f'{self.option}: {arguments.quote(name)}{who} cannot be a name; take'
        ' letters, digits, dots, hyphens and underscores.'
      )
    if not isinstance(entry, self.kind):
      raise ValueError(
        f'{self.option}: {name!r}{who} is a {type(entry).__name__}; give a'
        f' {self.kind.__name__}.'
      )
    own = getattr(entry, 'name', name)
    if own != name:
      raise ValueError(
        f'{self.option}: {name!r}{who} calls itself {arguments.quote(own)};'
        ' give both one name.'
      )

  def __getitem__(self, name: str) -> Entry:
    if name not in self:
      raise KeyError(name)
    return self.get(name)

  def __contains__(self, name: object) -> bool:
    return isinstance(name, str) and (
      name in self._entries or name in self._declared
    )

  def __iter__(self) -> Iterator[str]:
    return iter(self.names())

  def __len__(self) -> int:
    return len(self.names())


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
  """Whether an entry point is one of this library's own plug-ins."""
  ours = point.value.startswith('cascades.contrib')
  return ours and (point.dist is None or point.dist.name == extras.DISTRIBUTION)


def _package(point: importlib.metadata.EntryPoint) -> str:
  """The name of the package that declares an entry point."""
  return f'the package {point.dist.name}' if point.dist else point.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """An option that only a plug-in has.

  It is declared as an entry point of the group `cascades.options`, in a module
  that imports little: flags and help read it. `Sampler` takes it as a keyword
  argument.

  Attributes:
    name: Of the keyword argument, the flag and the config field.
    kind: Type of its value: str, int, float or bool.
    help: One line that says what it does.
    applies: What it has an effect on, in a few words.
    check: Returns a value as it is used; raises ValueError if it is out of its
      range.
  """

  name: str
  kind: type
  help: str
  applies: str
  check: Callable[[Any], Any]


# By name; the default of each is None, which leaves the choice to the plug-in.
OPTIONS: Registry[Option] = Registry('option', Option)
