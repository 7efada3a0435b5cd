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
  """Checks annotations in calls, but of fields of pytrees, which JAX builds."""
  checked = _check(function)
  if function.__name__ != '__init__':
    return checked

  @functools.wraps(function)
  def init(self, *args, **kwargs):
    is_pytree = hasattr(type(self), '_flax_dataclass')
    return (function if is_pytree else checked)(self, *args, **kwargs)

  return init
