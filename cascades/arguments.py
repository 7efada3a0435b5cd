"""Arguments: options that are declared once, their values and their names.

A frozen dataclass that derives from `Declared` declares its options as fields:

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Chosen(Declared):
    window: int | None = option(None, 'Tokens that must match.', low=1)

Values are checked when an instance is made; flags, config fields, help and the
guides' tables are made of the declarations. A `Registry` has the entries that
an option can name. A check raises a ValueError of one sentence. Imports no JAX.
"""

import dataclasses
import difflib
import math
import numbers
import pathlib
import re
import reprlib
from collections.abc import Callable
from typing import Any, Self, get_args

import numpy as np

# The largest number that float32 holds.
MAX_FLOAT32 = float(np.finfo(np.float32).max)
# The largest count that a compiled program holds, in int32.
MAX_INT32 = 2**31 - 1
# The largest seed of a random key, of which JAX takes 32 bits.
MAX_SEED = 2**32 - 1
# The name on the package index, where `cascades` is another project.
DISTRIBUTION = 'speculative-cascades'
# The folder of a checkout, which has a pyproject.toml.
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_KEY = 'option'
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_.-]*')
# Most digits of the numbers in names such as 'self:3'; int() refuses thousands.
_MAX_DIGITS = 7
_SHORT = reprlib.Repr()
# Most characters of a quoted value; enough for most paths.
_SHORT.maxstring = _SHORT.maxother = 100


def quote(value: Any) -> str:
  """Returns a short text for any value, for error messages."""
  try:
    return ' '.join(_SHORT.repr(value).split())
  # Integers of thousands of digits have no text; a user's __repr__ may fail.
  except Exception:
    return f'a {type(value).__name__}'


def number(name: str, value: Any, low: float, high: float) -> float:
  """Returns a number from low to high that float32 holds; never nan."""
  if getattr(value, 'ndim', None) == 0:
    # A scalar array, or a NumPy number.
    value = value.item()
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  try:
    real = float(value) if is_real else math.nan
  except OverflowError:
    real = math.nan
  is_beyond = MAX_FLOAT32 < abs(real) < math.inf
  if is_beyond or not low <= real <= high:
    reason = ', beyond the range of float32' if is_beyond else ''
    raise ValueError(
      f'{name}: must be a number from {low:g} to {high:g}, got'
      f' {quote(value)}{reason}.'
    )
  return real


def integer(name: str, value: Any, low: int, high: float = MAX_INT32) -> int:
  """Returns a whole number from low to high."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  real: Any = value if is_real else math.nan
  for is_wrong, expected in (
    # nan and infinity modulo 1 are nan, which is not 0.
    (real % 1 != 0, 'a whole number'),
    (real < low, f'{low} or more'),
    (real > high, f'{high} or less'),
  ):
    if is_wrong:
      raise ValueError(f'{name}: must be {expected}, got {quote(value)}.')
  return int(real)


def parse_count(text: str) -> int | None:
  """Returns the whole number that a text spells, or None."""
  is_count = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
  return int(text) if is_count else None


def as_list(name: str, values: Any, kind: str) -> list:
  """Returns the elements of an iterable as a list; refuses a text."""
  try:
    if isinstance(values, str | bytes):
      raise TypeError
    return list(values)
  except TypeError:
    raise ValueError(
      f'{name}: must be a list of {kind}, got {quote(values)}.'
    ) from None


def instance(name: str, value: Any, kind: Any, expected: str) -> Any:
  """Returns a value if it is of a type; refuses it otherwise."""
  if not isinstance(value, kind):
    raise ValueError(f'{name}: must be {expected}, got {quote(value)}.')
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """The declaration of an option; None is a value if it is the default."""

  name: str = ''
  kind: type = str
  default: Any
  help: str
  # Noun phrase for what the option applies to, such as 'EAGLE heads'.
  applies: str = ''
  low: float = -math.inf
  high: float = math.inf
  choices: tuple[str, ...] = ()
  # Returns the value to use; stands for type, range and choices.
  check: Callable[[Any], Any] | None = None

  def validate(self, value: Any) -> Any:
    """Returns a value, converted to the type of the option."""
    if value is None and self.default is None:
      return None
    if self.check is not None:
      return self.check(value)
    if self.kind is float:
      return number(self.name, value, self.low, self.high)
    if self.kind is int:
      high = MAX_INT32 if self.high == math.inf else self.high
      return integer(self.name, value, int(self.low), high)
    if self.kind is bool:
      return bool(instance(self.name, value, bool | np.bool_, 'True or False'))
    if not isinstance(value, str) or value not in (self.choices or (value,)):
      expected = ' or '.join(map(repr, self.choices)) or 'a text'
      raise ValueError(f'{self.name}: must be {expected}, got {quote(value)}.')
    return value


def option(default: Any, help: str, **declaration: Any) -> Any:
  """Returns the dataclass field of an option."""
  metadata = Option(default=default, help=help, **declaration)
  return dataclasses.field(default=default, metadata={_KEY: metadata})


# Not eq: classes that add no compared fields, as models, would all be equal.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Declared:
  """Base class of frozen dataclasses that declare options."""

  def __post_init__(self) -> None:
    for name, declaration in options_of(self).items():
      # The class is frozen: nothing else assigns its fields.
      object.__setattr__(self, name, declaration.validate(getattr(self, name)))

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with some options changed, checked again."""
    return dataclasses.replace(self, **changes)

  def to_dict(self) -> dict[str, Any]:
    """Returns every option by name, with values that JSON can hold."""
    return {name: getattr(self, name) for name in options_of(self)}


def options_of(declared: type[Declared] | Declared) -> dict[str, Option]:
  """Returns the options that a class declares, by name."""
  options = {}
  for field in dataclasses.fields(declared):
    if _KEY in field.metadata:
      kind: Any = (*get_args(field.type), field.type)[0]
      if isinstance(kind, str):
        raise ValueError(
          f'{field.name}: has an annotation that is a text; remove `from'
          f' __future__ import annotations` from {declared.__module__}.'
        )
      options[field.name] = dataclasses.replace(
        field.metadata[_KEY], name=field.name, kind=str if kind is Any else kind
      )
  return options


class Registry[Entry](dict[str, Entry]):
  """Entries of one kind by name; an unknown name is a ValueError.

  Attributes:
    option: The option that takes the names as values; begins error messages.
    kind: The type of every entry, or the class that all derive from.
  """

  def __init__(self, option: str, kind: type):
    super().__init__()
    self.option, self.kind = option, kind
    self._core: set[str] = set()

  def register(self, name: str, entry: Entry, builtin: bool = False) -> Entry:
    """Adds an entry; `builtin` marks the library's own."""
    is_of: Any = issubclass if isinstance(entry, type) else isinstance
    is_entry = is_of(entry, self.kind)
    # Records hold an entry's own name.
    is_free = self.get(name, entry) is entry
    is_free &= getattr(entry, 'name', name) == name
    if not (is_entry and is_free and _NAME.fullmatch(name)):
      raise ValueError(
        f'{self.option}: {quote(name)} cannot be registered; give a'
        f' {self.kind.__name__}, and a name that is not taken, of letters,'
        ' digits, dots, hyphens and underscores.'
      )
    self[name] = entry
    if builtin:
      self._core.add(name)
    return entry

  def unknown(self, name: Any, option: str = '') -> str:
    """Returns the error for an unknown name, with the nearest and all names."""
    near = difflib.get_close_matches(str(name)[:99], self, 1, 0.0)
    guess = f' did you mean {near[0]!r}?' if near else ''
    return (
      f'{option or self.option}: {quote(name)} is not known;{guess}'
      f' Choose from {", ".join(self)}.'
    )

  def core(self) -> dict[str, Entry]:
    """Returns the entries that the core registers."""
    return {name: entry for name, entry in self.items() if name in self._core}

  def is_builtin(self, name: str) -> bool:
    """True if an entry is the library's own."""
    return name in self._core

  def __missing__(self, name: str) -> Entry:
    raise ValueError(self.unknown(name))


def missing(option: str, package: str, extra: str) -> str:
  """Returns the error message for a dependency that is not installed."""
  requirement = f"'{DISTRIBUTION}[{extra}]'"
  if (_ROOT / 'pyproject.toml').is_file():
    requirement = f"-e '.[{extra}]' in the checkout"
  return f'{option}: {package} is not installed; run pip install {requirement}.'
