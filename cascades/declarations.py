"""Options, each declared once: type, default, range and help.

A frozen dataclass that derives from `Declared` declares its options as fields:

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Chosen(Declared):
    window: int | None = option(None, 'Tokens that must match.', low=1)

Values are checked and converted when an instance is made. Command-line flags,
config fields, help texts and the tables of the guides are made of the
declarations, so this module imports no JAX.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self, get_args

from cascades import arguments

_KEY = 'option'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """The declaration of an option; None is a value if it is the default."""

  name: str = ''
  # Of the default, or of the annotation if that is None.
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
      return arguments.number(self.name, value, self.low, self.high)
    if self.kind is int:
      high = arguments.MAX_INT32 if self.high == math.inf else self.high
      return arguments.integer(self.name, value, int(self.low), high)
    if self.kind is bool:
      arguments.booleans(**{self.name: value})
      return bool(value)
    if not isinstance(value, str) or value not in (self.choices or (value,)):
      expected = ' or '.join(map(repr, self.choices)) or 'a text'
      raise ValueError(
        f'{self.name}: must be {expected}, got {arguments.quote(value)}.'
      )
    return value


def option(default: Any, help: str, **declaration: Any) -> Any:
  """Returns the dataclass field of an option."""
  metadata = Option(default=default, help=help, **declaration)
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

  def to_dict(self) -> dict[str, Any]:
    """Returns every option by name, with values that JSON can hold."""
    return {name: getattr(self, name) for name in options_of(self)}

  @classmethod
  def from_dict(cls, fields: dict[str, Any]) -> Self:
    """Makes an instance of the options that `to_dict` returned."""
    names = options_of(cls)
    for name in (*fields, *names):
      if name not in names or name not in fields:
        raise ValueError(
          f'{name}: is not an option of {cls.__name__}, or is missing; give all'
          f' of {", ".join(names)}.'
        )
      names[name].validate(fields[name])
    return cls(**fields)


def options_of(declared: type[Declared] | Declared) -> dict[str, Option]:
  """Returns the options that a class declares, by name."""
  options = {}
  for field in dataclasses.fields(declared):
    if _KEY in field.metadata:
      types = get_args(field.type) if field.default is None else ()
      options[field.name] = dataclasses.replace(
        field.metadata[_KEY],
        name=field.name,
        kind=types[0] if types else type(field.default),
      )
  return options
