"""Options, each declared once: type, default, range and help.

A frozen dataclass that derives from `Declared` declares its options as fields:

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class NgramSpec(Declared):
    window: int | None = option(
      None, kind=int, low=1, high=256, help='Tokens that must match.'
    )

Values are checked and converted when an instance is made. Command-line flags,
config fields, help texts and the tables of the guides are made of the
declarations, so this module imports no JAX.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

from cascades import arguments

_KEY = 'option'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """The declaration of one option.

  Attributes:
    name: Name of the field, the flag, the config field and the column.
    kind: Type of its values: str, int, float or bool.
    default: Value of an option that is not given. None is allowed as a value
      if it is the default.
    help: One line that says what the option does and what None means.
    applies: Noun phrase for what the option applies to, such as 'EAGLE heads';
      empty if it applies to everything.
    low: Smallest number.
    high: Largest number.
    choices: Allowed texts; empty if other checks decide.
    check: Called with a value; returns the value to use, or raises a ValueError
      that starts with the option's name. None: type, range and choices decide.
  """

  name: str = ''
  kind: type
  default: Any
  help: str
  applies: str = ''
  low: float = -math.inf
  high: float = math.inf
  choices: tuple[str, ...] = ()
  check: Callable[[Any], Any] | None = None

  def validate(self, value: Any) -> Any:
    """Returns a value, converted to the type of the option."""
    if value is None and self.default is None:
      return None
    if self.check is not None:
      return self.check(value)
    if self.kind is bool:
      arguments.booleans(**{self.name: value})
      return bool(value)
    if self.kind is float:
      return arguments.number(self.name, value, self.low, self.high)
    if self.kind is int:
      high = arguments.MAX_INT32 if self.high == math.inf else self.high
      return arguments.integer(self.name, value, int(self.low), high)
    arguments.instance(self.name, value, str, 'a text')
    if self.choices and value not in self.choices:
      raise ValueError(
        f'{self.name}: must be {" or ".join(map(repr, self.choices))}, got'
        f' {arguments.quote(value)}.'
      )
    return value


def option(default: Any, *, kind: type, help: str, **declaration: Any) -> Any:
  """Returns the dataclass field of an option."""
  metadata = Option(kind=kind, default=default, help=help, **declaration)
  return dataclasses.field(default=default, metadata={_KEY: metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
  """Base class of frozen dataclasses that declare options."""

  def __post_init__(self) -> None:
    for name, declaration in options_of(self).items():
      # The class is frozen: nothing else assigns its fields.
      object.__setattr__(self, name, declaration.validate(getattr(self, name)))

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with some options changed, checked again."""
    return dataclasses.replace(self, **changes)

  def changed(self) -> dict[str, Any]:
    """Returns the options that differ from their defaults, by name."""
    return {
      name: getattr(self, name)
      for name, declaration in options_of(self).items()
      if getattr(self, name) != declaration.default
    }

  def to_dict(self) -> dict[str, Any]:
    """Returns every option by name, with values that JSON can hold."""
    return {name: getattr(self, name) for name in options_of(self)}

  @classmethod
  def from_dict(cls, fields: dict[str, Any]) -> Self:
    """Makes an instance of the options that `to_dict` returned."""
    declared = options_of(cls)
    for name, value in fields.items():
      if name not in declared:
        text = f'is not an option of {cls.__name__}; choose from'
        raise ValueError(f'{name}: {text} {", ".join(declared)}.')
      declared[name].validate(value)
    for name in declared:
      if name not in fields:
        raise ValueError(f'{name}: is missing; give all options.')
    return cls(**fields)


def options_of(declared: type[Declared] | Declared) -> dict[str, Option]:
  """Returns the options that a class declares, by name."""
  return {
    field.name: dataclasses.replace(field.metadata[_KEY], name=field.name)
    for field in dataclasses.fields(declared)
    if _KEY in field.metadata
  }
