"""Seconds: of a call, of a compilation, of arms that take turns.

Arms take turns so that a busy moment of the machine falls on all of them:
ratios of one run hold where seconds of two do not.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import tqdm


def timed[Found](run: Callable[..., Found], *args: Any) -> tuple[float, Found]:
  """Calls a function, and waits for the arrays that it returns.

  Args:
    run: Any function.
    *args: What it is called with.

  Returns:
    Seconds until all of it was there, and what it returned.
  """
  start = time.perf_counter()
  found = jax.block_until_ready(run(*args))
  return time.perf_counter() - start, found


def compiled(
  jitted: Any, *args: Any, **keywords: Any
) -> tuple[float, jax.stages.Compiled]:
  """Compiles a function ahead of time.

  Args:
    jitted: What `jax.jit` made of it.
    *args: Arrays that it takes, or only their shapes.
    **keywords: Further arguments by name, static ones among them.

  Returns:
    Seconds to trace and compile it, and what can be called.
  """
  return timed(lambda: jitted.lower(*args, **keywords).compile())


def take_turns[Found](
  arms: Sequence[Callable[[], Found]],
  repeats: int,
  bar: tqdm.tqdm | None = None,
  alternate: bool = False,
) -> list[list[Found]]:
  """Calls every arm once a turn, after a turn that only warms them up.

  Args:
    arms: Functions of nothing, which time themselves.
    repeats: How many turns count.
    bar: A progress bar that moves on by one with every call; None for none.
    alternate: Whether every other turn begins with the last arm, so that none
      always runs after the same one.

  Returns:
    Of each arm, what it returned in the turns that count.
  """
  found: list[list[Found]] = [[] for _ in arms]
  order = list(range(len(arms)))
  for turn in range(repeats + 1):
    for i in order if turn % 2 or not alternate else order[::-1]:
      one = arms[i]()
      if turn:
        found[i].append(one)
      if bar is not None:
        bar.update()
  return found


def interleave(
  arms: Mapping[str, Callable[[], Any]], repeats: int, bar: tqdm.tqdm
) -> dict[str, list[float]]:
  """Seconds of whole calls, the arms taking turns.

  Args:
    arms: Functions of nothing, by names.
    repeats: How many turns count.
    bar: A progress bar that moves on by one with every call.

  Returns:
    Of each name, the seconds of the turns that count.
  """
  turns = [functools.partial(_seconds, run) for run in arms.values()]
  return dict(zip(arms, take_turns(turns, repeats, bar), strict=True))


def _seconds(run: Callable[[], Any]) -> float:
  """Seconds of a call; what it returned is let go of."""
  seconds, _ = timed(run)
  return seconds
