"""What the fields of a file of others may be, and one form of error for them.

A kind of file is a class with a typed field for each that is read; what else a
file holds is kept and is not looked at. Numbers are taken as they stand: a text
is no number, and neither are true, NaN and infinity.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

import numpy as np
import pydantic

from cascades import arguments
from cascades.untrusted import display

# More than any size of a model, and what fits 32 bits.
MOST = 2**31 - 1

Count = Annotated[int, pydantic.Field(ge=0, le=MOST)]
Size = Annotated[int, pydantic.Field(ge=1, le=MOST)]
Number = Annotated[float, pydantic.Field(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, pydantic.Field(ge=0, le=1e30)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e30)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]


def one_of(*known: Any) -> pydantic.PlainValidator:
  """Checks that a field is one of these values, or a float32 next to it.

  For `Annotated[Any, one_of(...)]`; null is as good as false.
  """

  def check(given: Any) -> Any:
    value = given
    if given is None and any(one is False for one in known):
      value = False
    for one in known:
      if isinstance(one, float) and isinstance(value, float):
        # What float32 does not hold is infinite there, and none of them.
        with np.errstate(over='ignore'):
          if np.float32(value) == np.float32(one):
            return given
      elif type(value) is type(one) and value == one:
        return given
    raise ValueError(' or '.join(map(repr, known)))

  return pydantic.PlainValidator(check)


# A list stops at the first item that is wrong: an error takes a kilobyte.
Each = pydantic.Field(fail_fast=True)


def each_is(known: Callable[[Any], bool]) -> pydantic.BeforeValidator:
  """Has a table, too, report the first item alone that is wrong.

  Args:
    known: Says whether a value will do.
  """

  def check(given: Any) -> Any:
    if isinstance(given, dict):
      for name, value in given.items():
        if not known(value):
          return {name: value}
    return given

  return pydantic.BeforeValidator(check)


Texts = Annotated[dict[str, str], each_is(lambda x: isinstance(x, str))]
Counts = Annotated[
  dict[str, Count], each_is(lambda x: type(x) is int and 0 <= x <= MOST)
]


class Schema(pydantic.BaseModel):
  """The fields of a kind of file."""

  model_config = pydantic.ConfigDict(
    strict=True,
    extra='allow',
    frozen=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    # Names such as model_type are theirs.
    protected_namespaces=(),
  )

  @classmethod
  def check(
    cls, fields: Any, where: str, advice: str = 'fetch it again'
  ) -> Self:
    """Returns the fields of a file, each of its type and within its range.

    Args:
      fields: What the file holds.
      where: The option and the file, for errors.
      advice: What the user can do about a file that is refused.

    Raises:
      ValueError: One is of another type or out of range: `<where>: <field> must
        be <what>, got <value>; <advice>.`
    """
    try:
      return cls.parse(fields)
    except ValueError as error:
      raise ValueError(f'{where}: {error}; {advice}.') from None

  @classmethod
  def parse(cls, fields: Any) -> Self:
    """As `check`, where the caller says which file it is.

    Raises:
      ValueError: What is wrong, alone: `<field> must be <what>, got <value>`.
    """
    if not isinstance(fields, Mapping):
      raise ValueError('it is no table of fields')
    try:
      return cls.model_validate(dict(fields))
    except pydantic.ValidationError as error:
      raise ValueError(_why(error, fields)) from None


def _why(error: pydantic.ValidationError, fields: Mapping[str, Any]) -> str:
  """Says what is wrong with the first field that is wrong."""
  found = [
    (_place(x['loc'], fields), x)
    for x in error.errors(include_url=False, include_context=False)
  ]
  # Of a field that may be a list, its item, and not that it is no number.
  of_field = (x for x in found if x[1]['loc'][:1] == found[0][1]['loc'][:1])
  place, first = max(of_field, key=lambda x: x[0].count('.'))
  short = {'missing': 'is missing', 'extra_forbidden': 'is no known field'}
  if first['type'] in short:
    return f'{place} {short[first["type"]]}'
  # Of a field that may be one of several types, each says what it must be.
  what = dict.fromkeys(x['msg'] for at, x in found if at == place)
  start = r'Input should be |Value error, '
  what = ' or '.join(re.sub(start, '', x, count=1) for x in what)
  # A class of this library is nothing that a file can hold.
  what = re.sub(r' or instance of \w+', '', what)
  return f'{place} must be {what}, got {arguments.quote(first["input"])}'


def _place(parts: tuple[int | str, ...], fields: Mapping[str, Any]) -> str:
  """Returns the name of a field within others: 'rope_parameters.factor'.

  Args:
    parts: As pydantic has it: names of fields, indices, and names of types that
      were tried.
    fields: What the file holds.
  """
  names, value = [], fields
  for part in parts:
    missing = isinstance(value, Mapping) and part == parts[-1]
    try:
      value = value[part]
    except (KeyError, IndexError, TypeError):
      if not missing:
        continue
    names.append(str(part))
  return display.sentence('.'.join(names))
