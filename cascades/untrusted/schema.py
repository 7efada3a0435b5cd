"""Checks types and ranges of the fields of untrusted files.

Each kind of file is a class with a typed field for each field that is read;
other fields of the file are kept unchecked. Types are strict: texts, true, NaN
and infinity are no numbers. All errors have one form.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

import numpy as np
import pydantic

from cascades import arguments
from cascades.untrusted import display

# More than any size of a model; fits 32 bits.
MAX_COUNT = 2**31 - 1

Count = Annotated[int, pydantic.Field(ge=0, le=MAX_COUNT)]
Size = Annotated[int, pydantic.Field(ge=1, le=MAX_COUNT)]
Number = Annotated[float, pydantic.Field(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, pydantic.Field(ge=0, le=1e30)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e30)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]


def one_of(*allowed: Any) -> pydantic.PlainValidator:
  """Returns a validator of a field with a few allowed values.

  Used as `Annotated[Any, one_of(...)]`. Floats are compared as float32, and
  null equals False.
  """

  def check(field: Any) -> Any:
    value = field
    if field is None and any(x is False for x in allowed):
      value = False
    for x in allowed:
      if isinstance(x, float) and isinstance(value, float):
        # A value beyond float32 becomes infinity, which no value equals.
        with np.errstate(over='ignore'):
          if np.float32(value) == np.float32(x):
            return field
      elif type(value) is type(x) and value == x:
        return field
    raise ValueError(' or '.join(map(repr, allowed)))

  return pydantic.PlainValidator(check)


# Ends the check of a list at its first wrong item: an error takes a kilobyte.
FailFast = pydantic.Field(fail_fast=True)


def fail_fast_values(
  is_valid: Callable[[Any], bool],
) -> pydantic.BeforeValidator:
  """Returns a validator that reduces an object to its first wrong value."""

  def check(field: Any) -> Any:
    if isinstance(field, dict):
      for name, value in field.items():
        if not is_valid(value):
          return {name: value}
    return field

  return pydantic.BeforeValidator(check)


Texts = Annotated[
  dict[str, str], fail_fast_values(lambda x: isinstance(x, str))
]
Counts = Annotated[
  dict[str, Count],
  fail_fast_values(lambda x: type(x) is int and 0 <= x <= MAX_COUNT),
]


class Schema(pydantic.BaseModel):
  """Base class of the fields of a kind of file."""

  model_config = pydantic.ConfigDict(
    strict=True,
    extra='allow',
    frozen=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    # Files have names such as model_type, which pydantic reserves.
    protected_namespaces=(),
  )

  @classmethod
  def check(
    cls, fields: Any, location: str, advice: str = 'fetch it again'
  ) -> Self:
    """Returns the fields of a file, each of its type and within its range."""
    try:
      return cls.parse(fields)
    except ValueError as error:
      raise ValueError(f'{location}: {error}; {advice}.') from None

  @classmethod
  def parse(cls, fields: Any) -> Self:
    """Returns checked fields; errors do not name the file."""
    if not isinstance(fields, Mapping):
      raise ValueError('it is not a JSON object')
    try:
      return cls.model_validate(dict(fields))
    except pydantic.ValidationError as error:
      raise ValueError(_reason(error, fields)) from None


def _reason(error: pydantic.ValidationError, fields: Mapping[str, Any]) -> str:
  """Returns the reason why the first wrong field is refused."""
  errors = [
    (_field_name(x['loc'], fields), x)
    for x in error.errors(include_url=False, include_context=False)
  ]
  # A field that may be a list or a number has an error of each type: the one of
  # the list's item is the most specific.
  root = errors[0][1]['loc'][:1]
  of_field = (x for x in errors if x[1]['loc'][:1] == root)
  name, first = max(of_field, key=lambda x: x[0].count('.'))
  short = {'missing': 'is missing', 'extra_forbidden': 'is not a known field'}
  if first['type'] in short:
    return f'{name} {short[first["type"]]}'
  # A field that may have several types has a message for each type.
  messages = dict.fromkeys(x['msg'] for field, x in errors if field == name)
  prefix = r'Input should be |Value error, '
  expected = ' or '.join(re.sub(prefix, '', x, count=1) for x in messages)
  # A file cannot contain an instance of a class of this library.
  expected = re.sub(r' or instance of \w+', '', expected)
  return f'{name} must be {expected}, got {arguments.quote(first["input"])}'


def _field_name(parts: tuple[int | str, ...], fields: Mapping[str, Any]) -> str:
  """Returns the full name of a field, such as 'rope_parameters.factor'."""
  names: list[str] = []
  value: Any = fields
  for part in parts:
    is_missing = isinstance(value, Mapping) and part == parts[-1]
    try:
      value = value[part]
    except (KeyError, IndexError, TypeError):
      if not is_missing:
        continue
    names.append(str(part))
  return display.sentence('.'.join(names))
