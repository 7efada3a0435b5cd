"""Fields of files that others wrote: numbers and tables, or a refusal."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascades import arguments

# More than any size of a model.
_MOST = 2**31 - 1


def whole(
  fields: Mapping[str, Any],
  name: str,
  low: int = 1,
  high: int = _MOST,
  or_null: bool = False,
  where: str = 'config.json',
) -> int | None:
  """Returns a field that must be a whole number.

  Args:
    fields: Of a file.
    name: Of the field; an absent one is null.
    low: The least that it may be.
    high: The most.
    or_null: Whether it may be null.
    where: The file, for errors.

  Raises:
    ValueError: It is none.
  """
  value = fields.get(name)
  if type(value) is int and low <= value <= high:
    return value
  if or_null and value is None:
    return value
  raise _wrong(
    where, name, value, f'not a whole number from {low} to {high}', or_null
  )


def number(
  fields: Mapping[str, Any],
  name: str,
  or_null: bool = False,
  where: str = 'config.json',
  low: float = 0.0,
  high: float = 1e30,
) -> float | None:
  """Returns a field that must be a number above `low`, up to `high`.

  Args:
    fields: Of a file.
    name: Of the field; an absent one is null.
    or_null: Whether it may be null.
    where: The file, for errors.
    low: Less than it may be.
    high: The most.

  Raises:
    ValueError: It is none.
  """
  value = fields.get(name)
  if type(value) in (int, float) and low < value <= high:
    # JAX takes no whole number of more than 32 bits.
    return float(value)
  if or_null and value is None:
    return value
  raise _wrong(
    where, name, value, f'not a number above {low:g}, up to {high:g}', or_null
  )


def table(
  fields: Mapping[str, Any], name: str, where: str = 'config.json'
) -> dict[str, Any]:
  """Returns a field that holds fields; {} where it is null or absent.

  Raises:
    ValueError: It holds something else.
  """
  value = fields.get(name)
  if value is None or isinstance(value, dict):
    return value or {}
  raise _wrong(where, name, value, 'no table of fields', True)


def _wrong(
  where: str, name: str, value: Any, why: str, or_null: bool
) -> ValueError:
  """What is said of a field that is of another type, or out of bounds."""
  end = ' and not null' if or_null else ''
  return ValueError(
    f'{where}: {name} is {arguments.shown(value)}, {why}{end}; fetch it again.'
  )


def same(given: Any, known: Any) -> bool:
  """Whether a file says a value, be it as its nearest float32."""
  if isinstance(known, float) and isinstance(given, float):
    return np.float32(given) == np.float32(known)
  return given == known
