"""Times entrants that take turns, and makes tables of the times.

Entrants run alternately in one process, so that other load of the machine slows
all of them: ratios within one run are comparable, seconds of two runs are not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cascades import arguments
from experiments import cli
from experiments.sweeps import costs

Figures = Sequence[dict[str, Any]]
# Cells of a table: the head, then the rows.
Table = Sequence[Sequence[str]]
# The head of a table of thresholds; see `threshold`.
THRESHOLDS = 'target', 'bound', 'measured', 'met'


class Entrant(NamedTuple):
  """A participant of a benchmark."""

  fields: dict[str, Any]
  run: Callable[[], dict[str, Any]]


def timed[Output](
  run: Callable[..., Output], *args: Any
) -> tuple[float, Output]:
  """Calls a function and waits for the arrays of its output."""
  start = time.perf_counter()
  output = jax.block_until_ready(run(*args))
  return time.perf_counter() - start, output


def loop_entrant(
  fields: dict[str, Any], loop: costs.TimedLoop, name: str
) -> Entrant:
  """Makes an entrant that runs a timed loop."""

  def run() -> dict[str, Any]:
    seconds, _ = timed(loop.run)
    return {name: seconds / loop.calls}

  return Entrant(fields, run)


def two_part_entrant(
  fields: dict[str, Any],
  prefill: Callable[[], Any],
  decode: Callable[[Any], Any],
  facts: Callable[[Any], dict[str, Any]],
) -> Entrant:
  """Makes an entrant that reads prompts, then writes."""

  def run() -> dict[str, Any]:
    prefill_s, state = timed(prefill)
    decode_s, state = timed(decode, state)
    return {'prefill_s': prefill_s, 'decode_s': decode_s, **facts(state)}

  return Entrant(fields, run)


def warm_up(entrant: Entrant) -> tuple[Entrant, dict[str, Any]]:
  """Runs an entrant twice, which compiles it."""
  first, second = entrant.run(), entrant.run()
  seconds = sum(first[x] - second[x] for x in second if x.endswith('_s'))
  fields = entrant.fields | {'compile_s': max(0.0, seconds)}
  return Entrant(fields, entrant.run), second


def run_in_turns[Output](
  runs: Sequence[Callable[[], Output]],
  repeats: int,
  description: str,
  quiet: bool = False,
) -> list[list[Output]]:
  """Calls every function once a turn (a round), after a warm-up turn.

  Every other turn has the reverse order, so that no function always runs after
  the same one.
  """
  outputs: list[list[Output]] = [[] for _ in runs]
  order = list(range(len(runs)))
  with cli.progress(len(runs) * (repeats + 1), description, quiet) as bar:
    for repeat in range(repeats + 1):
      for i in order if repeat % 2 else reversed(order):
        output = runs[i]()
        if repeat:
          outputs[i].append(output)
        bar.update()
  return outputs


def race(
  entrants: Sequence[Entrant],
  repeats: int,
  description: str,
  quiet: bool = False,
) -> list[dict[str, Any]]:
  """Times entrants that take turns."""
  turns = run_in_turns(
    [entrant.run for entrant in entrants], repeats, description, quiet
  )
  reference = turns[0][-1].get('first')
  figures = []
  for entrant, outputs in zip(entrants, turns, strict=True):
    figure = dict(entrant.fields)
    for name, value in outputs[-1].items():
      if name == 'first':
        figure['same_tokens'] = None
        if value is not None and reference is not None:
          # Compares up to the length of the shorter answer.
          n = min(len(value), len(reference))
          figure['same_tokens'] = np.array_equal(value[:n], reference[:n])
      elif name.endswith('_s'):
        figure[name] = [output[name] for output in outputs]
      else:
        figure[name] = value
    figures.append(figure)
  return figures


def median(values: Sequence[float]) -> float:
  """Returns the median of several turns, which outliers affect little."""
  return float(np.median(values))


def check_counts(config: ConfigDict, *names: str) -> None:
  """Checks that fields are integers from 1 on, or tuples of such."""
  for name in names:
    values = config[name] if isinstance(config[name], tuple) else [config[name]]
    if not values:
      raise ValueError(f'{name}: must have at least one value, got none.')
    for value in values:
      arguments.integer(name, value, 1)


def threshold(
  name: str, sign: str, bound: float, value: float
) -> tuple[str, ...]:
  """Compares a ratio with its bound."""
  is_met = value <= bound if sign == '<=' else value >= bound
  verdict = 'yes' if is_met else '**no**'
  return name, f'{sign} {bound:g}', f'{value:.2f}', verdict


def tables(
  columns: Mapping[str, tuple[str, int | None]],
  rows: Figures,
  thresholds: Sequence[tuple[str, ...]],
) -> list[Table]:
  """Makes tables of rows and of thresholds."""
  visible_columns = {
    head: column
    for head, column in columns.items()
    if any(row.get(column[0]) is not None for row in rows)
  }

  def cell(value: Any, decimals: int | None) -> str:
    if value is None:
      return '-'
    return value if decimals is None else f'{value:.{decimals}f}'

  cells = [
    [
      cell(row.get(name), decimals)
      for name, decimals in visible_columns.values()
    ]
    for row in rows
  ]
  return [[list(visible_columns), *cells], [THRESHOLDS, *thresholds]]


def format_table(table: Table) -> str:
  """Formats a table for a terminal."""
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  return '\n'.join(
    '  '.join(map(str.ljust, row, widths)).rstrip() for row in table
  )
