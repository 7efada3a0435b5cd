"""Checks of arguments; each raises a ValueError of one sentence."""

import decimal
import math
import numbers
import reprlib

import numpy as np

# The largest number that float32 holds.
LARGEST = float(np.finfo(np.float32).max)
# Digits of the numbers in names such as 'self:3'. A number of thousands has no
# int.
_DIGITS = 7
_SHORT = reprlib.Repr()
# As long as most paths.
_SHORT.maxstring = _SHORT.maxother = 100


def shown(value) -> str:
  """A value in a few words, whatever it is."""
  try:
    return ' '.join(_SHORT.repr(value).split())
  # Integers of thousands of digits have no text; what a user made may fail.
  except Exception:
    return f'a {type(value).__name__}'


def number(name: str, value, low: float, high: float) -> float:
  """A number from low to high that float32 holds, which nan never is."""
  if getattr(value, 'ndim', None) == 0:
    # Of an array, or a number of NumPy's.
    value = value.item()
  known = isinstance(value, numbers.Real | decimal.Decimal)
  try:
    found = float(value) if known and not isinstance(value, bool) else math.nan
  except (ValueError, OverflowError):
    found = math.nan
  if math.isfinite(found) and abs(found) > LARGEST:
    raise ValueError(
      f'{name}: {shown(value)} is more than float32 holds; give a number from'
      f' {-LARGEST:.2g} to {LARGEST:.2g}, or infinity.'
    )
  if not low <= found <= high:
    raise ValueError(
      f'{name}: {shown(value)} will not do; give a number from {low:g} to'
      f' {high:g}.'
    )
  return found


# The largest count that a compiled program holds, in int32.
MOST = 2**31 - 1
# The largest seed of a random key, of which JAX takes 32 bits.
LARGEST_SEED = 2**32 - 1


def whole(name: str, value, low: int, high: float = MOST) -> int:
  """A whole number from low to high."""
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  # What is left of nan and of infinity is nan, which is not 0.
  if not real or value % 1 != 0:
    raise ValueError(f'{name}: {shown(value)} is not a whole number.')
  if value < low:
    raise ValueError(f'{name}: {shown(value)} will not do; give {low} or more.')
  if value > high:
    raise ValueError(
      f'{name}: {shown(value)} will not do; give {high} or less.'
    )
  return int(value)


def count_in(text: str) -> int | None:
  """The whole number that a part of a name is; None of any other text."""
  known = text.isascii() and text.isdigit() and len(text) <= _DIGITS
  return int(text) if known else None


def file_name(name: str, value: str) -> str:
  """A text that can be the name of a file.

  Raises:
    ValueError: It cannot, so that looking for it would fail.
  """
  parts = value.encode(errors='replace').split(b'/')
  if '\0' in value or max(map(len, parts)) > 255 or len(value) > 4000:
    raise ValueError(
      f'{name}: {shown(value)}, a text of {len(value)} characters, cannot be'
      ' the name of a file; give another name.'
    )
  return value


def listed(name: str, values, kind: str) -> list:
  """A list, of anything that can be gone through and is no text.

  Args:
    name: The argument's name.
    values: What was given for it.
    kind: What the list is to hold, in words.
  """
  try:
    if isinstance(values, str | bytes):
      raise TypeError
    return list(values)
  except TypeError:
    raise ValueError(
      f'{name}: {shown(values)} will not do; give a list of {kind}.'
    ) from None


def texts(name: str, values) -> tuple[str, ...]:
  """A list of texts, none of which is empty."""
  found = tuple(listed(name, values, 'texts'))
  if not all(isinstance(text, str) and text for text in found):
    raise ValueError(f'{name}: give a list of texts, none of which is empty.')
  return found


def a(name: str, value, kind, advice: str):
  """A value of a kind, as `isinstance` has it; `advice` says what to give."""
  if not isinstance(value, kind):
    raise ValueError(f'{name}: {shown(value)} will not do; give {advice}.')
  return value


def flags(**given) -> None:
  """Values that are True or False, by the names of their arguments."""
  for name, value in given.items():
    a(name, value, bool | np.bool_, 'True or False')
