"""Numbers of several turns as one, and as cells of a table."""

from collections.abc import Sequence

import numpy as np


def median(values: Sequence[float]) -> float:
  """The one in the middle: what a busy moment of the machine moves least."""
  return float(np.median(values))


def cell(value: float | None, width: int, digits: int) -> str:
  """A number on the right of a column; a dash where there is none.

  Args:
    value: The number; None if the row has none.
    width: Characters of the column.
    digits: How many stand after the point.
  """
  return f'{"-" if value is None else f"{value:.{digits}f}":>{width}}'
