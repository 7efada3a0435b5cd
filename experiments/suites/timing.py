"""Timing that all suites share."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def interleave(
  arms: Mapping[str, Callable[[], Any]], repeats: int, bar
) -> dict[str, list[float]]:
  """Seconds of every arm, the arms taking turns; the first turn is left out.

  Args:
    arms: Functions of nothing that return arrays.
    repeats: Turns that count.
    bar: Moved on by one for each turn of an arm.
  """
  seconds: dict[str, list[float]] = {name: [] for name in arms}
  for turn in range(repeats + 1):
    for name, run in arms.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      if turn:
        seconds[name].append(time.perf_counter() - start)
      bar.update()
  return seconds
