"""The checker of annotations that the tests of `cascades` run under."""

import functools
from collections.abc import Callable
from typing import Any, Self

import beartype

# Python's type checkers accept an int for a float. Self cannot be checked in a
# function alone.
_check = beartype.beartype(
  conf=beartype.BeartypeConf(
    is_pep484_tower=True,
    hint_overrides=beartype.BeartypeHintOverrides({Self: Any}),
  )
)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function that checks its annotations when it is called.

  Fields of pytrees are not checked: JAX builds them with batches of values,
  shapes, axes or shardings in the place of arrays.
  """
  checked = _check(function)
  if function.__name__ != '__init__':
    return checked

  @functools.wraps(function)
  def init(self, *args, **kwargs):
    is_pytree = hasattr(type(self), '_flax_dataclass')
    return (function if is_pytree else checked)(self, *args, **kwargs)

  return init
