"""Registries: named entries that an option can choose, plug-ins included.

A registry holds entries of one kind by name. The core registers its own as it
is imported. A plug-in declares its entries as entry points of the registry's
group, in the metadata of its package:

  [project.entry-points."cascades.verifications"]
  look_ahead = "cascades.contrib.look_ahead:VERIFICATION"

The module is imported when the name is first used, so the core needs to import
no plug-in. `cascades.contrib` is declared in the same way as any other package
of plug-ins.
"""

import difflib
import functools
import importlib.metadata
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from cascades import arguments, extras

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
  """Entries of one kind by name.

  A mapping from all names, plug-ins included, to entries; looking up the name
  of a plug-in imports the plug-in.

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
    # Names and values of the library's own entries.
    self._builtin: dict[str, Any] = {}

  @property
  def group(self) -> str:
    """The group of entry points that plug-ins declare entries in."""
    return f'cascades.{self.option}s'

  def register(self, name: str, entry: Entry, builtin: bool = False) -> Entry:
    """Adds an entry."""
    arguments.instance('name', name, str, 'a text')
    self._check(name, entry)
    is_taken = name in self.aliases or (
      self._entries[name] is not entry
      if name in self._entries
      # Core entries register at import, before entry points are read.
      else not builtin and name in self._declared
    )
    if is_taken:
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

  def get(self, name: Any, default: Any = _REFUSE) -> Entry:
    """Returns the entry of a name or an alias; imports a plug-in if needed."""
    canonical = self.aliases.get(name, name) if isinstance(name, str) else None
    if canonical in self._entries:
      return self._entries[canonical]
    if canonical in self._declared:
      return self._load(canonical)
    if default is not _REFUSE:
      return default
    raise ValueError(self.unknown(name))

  def find(self, spec: str, option: str = '') -> tuple[Entry, str]:
    """Returns the entry of 'NAME:ARGUMENT', and the argument."""
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
    """Returns the error for an unknown name, with the nearest and all names."""
    known_names = [*self.names(), *self.aliases]
    text, _ = split(name[:99]) if isinstance(name, str) else ('', '')
    near = difflib.get_close_matches(text, known_names, 1, 0.0)
    guess = f' did you mean {near[0]!r}?' if near else ''
    return (
      f'{option or self.option}: {arguments.quote(name)} is not known;{guess}'
      f' Choose from {", ".join(self.names())}.'
    )

  def names(self) -> tuple[str, ...]:
    """Returns all names, those of plug-ins that are not imported included."""
    # The order does not depend on what was imported before.
    return tuple(self._builtin | self._declared | self._entries)

  def loaded(self) -> tuple[Entry, ...]:
    """Returns the entries that are registered or imported so far."""
    return tuple(self._entries.values())

  def core(self) -> dict[str, Entry]:
    """Returns the entries that the core registers, without any plug-in."""
    return {name: self._entries[name] for name in self._builtin}

  def available(self) -> dict[str, Entry]:
    """Returns all entries by name; warns of plug-ins that cannot be imported.

    Meant for code that iterates over all entries: a broken plug-in is an error
    only for a user who names it.
    """
    entries = {}
    for name in self.names():
      try:
        entries[name] = self.get(name)
      except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
    return entries

  def is_builtin(self, name: str) -> bool:
    """True if an entry is the library's own and was not replaced."""
    if name in self._builtin:
      return self._entries[name] is self._builtin[name]
    point = self._declared.get(name)
    return point is not None and _is_ours(point)

  def origin(self, name: str) -> tuple[str, str] | None:
    """Returns name and version of a plug-in's package; None for the core's."""
    point = self._declared.get(name)
    dist = point and point.dist
    return (dist.name, dist.version) if dist else None

  @functools.cached_property
  def _points(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
    """Entry points of plug-ins by name, the library's own first.

    A package that is installed twice counts once; several packages that declare
    one name are all listed.
    """
    points: dict[str, list] = {}
    found_points = importlib.metadata.entry_points(group=self.group)
    for point in sorted(found_points, key=lambda x: (not _is_ours(x), x.value)):
      same_name = points.setdefault(point.name, [])
      if not same_name or (
        point.value != same_name[-1].value and not _is_ours(same_name[0])
      ):
        same_name.append(point)
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
    """Imports the plug-in that declares a name."""
    point, *conflicts = self._points[name]
    if conflicts:
      packages = ' and '.join(map(_package, (point, *conflicts)))
      raise ValueError(
        f'{self.option}: {name!r} is declared by {packages}; uninstall one of'
        ' them.'
      )
    try:
      entry = point.load()
    # A plug-in can raise any exception when it is imported.
    except Exception as error:
      reason = ' '.join(f'{type(error).__name__}: {error}'.split()).rstrip('.')
      raise ValueError(
        f'{self.option}: {name!r} is declared by {_package(point)}, which'
        f' cannot be imported ({reason}); install what it needs, update it or'
        ' uninstall it.'
      ) from error
    self._check(name, entry, f', which {_package(point)} declares,')
    self._entries[name] = entry
    return entry

  def _check(self, name: str, entry: Any, declared_by: str = '') -> None:
    """Refuses an invalid name, and an entry of another type."""
    if not _NAME.fullmatch(name):
      raise ValueError(
        f'{self.option}: {arguments.quote(name)}{declared_by} cannot be a name;'
        ' take letters, digits, dots, hyphens and underscores.'
      )
    if not isinstance(entry, self.kind):
      raise ValueError(
        f'{self.option}: {name!r}{declared_by} is a {type(entry).__name__};'
        f' give a {self.kind.__name__}.'
      )
    entry_name = getattr(entry, 'name', name)
    if entry_name != name:
      raise ValueError(
        f'{self.option}: {name!r}{declared_by} has the name'
        f' {arguments.quote(entry_name)}; give both the same name.'
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
  """True for an entry point of one of the library's own plug-ins."""
  is_contrib = point.value.startswith('cascades.contrib')
  return is_contrib and (
    point.dist is None or point.dist.name == extras.DISTRIBUTION
  )


def _package(point: importlib.metadata.EntryPoint) -> str:
  """Returns the name of the package that declares an entry point."""
  return f'the package {point.dist.name}' if point.dist else point.value
