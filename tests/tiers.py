"""Which cases of a test the first tier runs; `-m slow` runs the others."""

from collections.abc import Iterable

import pytest


def first(cases: Iterable, count: int = 1) -> list:
  """Cases of `parametrize`, all but the first of them marked slow.

  Args:
    cases: A tuple is a value for each of several arguments.
    count: How many are not slow.
  """
  return [
    pytest.param(
      *(case if isinstance(case, tuple) else (case,)),
      marks=() if i < count else pytest.mark.slow,
    )
    for i, case in enumerate(cases)
  ]
