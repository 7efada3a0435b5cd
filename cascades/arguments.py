"""Checks of argument values; each raises a ValueError of one sentence."""

import decimal
import math
import numbers
import reprlib
from typing import Any

import numpy as np

# The largest number that float32 holds.
MAX_FLOAT32 = float(np.finfo(np.float32).max)
# The largest count that a compiled program holds, in int32.
MAX_INT32 = 2**31 - 1
# The largest seed of a random key, of which JAX takes 32 bits.
MAX_SEED = 2**32 - 1
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
  is_real = isinstance(value, numbers.Real | decimal.Decimal)
  try:
    real = float(value) if is_real and not isinstance(value, bool) else math.nan
  except (ValueError, OverflowError):
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


def file_name(name: str, value: str) -> str:
  """Returns a text if it can be the name of a file."""
  parts = value.encode(errors='replace').split(b'/')
  if '\0' in value or max(map(len, parts)) > 255 or len(value) > 4000:
    raise ValueError(
      f'{name}: {quote(value)}, a text of {len(value)} characters, cannot'
      ' be the name of a file; give another name.'
    )
  return value


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


def text_tuple(name: str, values: Any) -> tuple[str, ...]:
  """Returns a tuple of texts, none of which is empty."""
  texts = tuple(as_list(name, values, 'texts'))
  if not all(isinstance(text, str) and text for text in texts):
    raise ValueError(f'{name}: must be non-empty texts, got {quote(values)}.')
  return texts


def instance(name: str, value: Any, kind: Any, expected: str) -> Any:
  """Returns a value if it is of a type; refuses it otherwise."""
  if not isinstance(value, kind):
    raise ValueError(f'{name}: must be {expected}, got {quote(value)}.')
  return value


def booleans(**values: Any) -> None:
  """Refuses values that are not True or False; keywords name the arguments."""
  for name, value in values.items():
    instance(name, value, bool | np.bool_, 'True or False')
