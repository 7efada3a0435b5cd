"""Times entrants that take turns, and shows what they took.

Entrants take turns in one process, so that a busy moment of the machine falls
on all of them: ratios of one run hold where seconds of two do not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cascades import arguments
from experiments import cli

Figures = Sequence[dict[str, Any]]
# Cells of a table: its head, and then its rows.
Table = Sequence[Sequence[str]]
# What a figure is held to, what it is, and whether it is within the bound.
THRESHOLDS = 'target', 'bound', 'found', 'met'


class Entrant(NamedTuple):
  """Something that is timed.

  Attributes:
    fields: What its figure says of it: its name `arm`, gamma and so on.
    run: Runs it once. Returns its seconds, with names that end in `_s`, and
      other facts; a greedy entrant also gives `first`, the new tokens of the
      first row, or None where they are not known.
  """

  fields: dict[str, Any]
  run: Callable[[], dict[str, Any]]


def timed[Output](
  run: Callable[..., Output], *args: Any
) -> tuple[float, Output]:
  """Calls a function with arguments, and waits for the arrays of its output.

  Returns:
    Seconds until all of the output is there, and the output.
  """
  start = time.perf_counter()
  output = jax.block_until_ready(run(*args))
  return time.perf_counter() - start, output


def in_two_parts(
  fields: dict[str, Any],
  prefill: Callable[[], Any],
  decode: Callable[[Any], Any],
  facts: Callable[[Any], dict[str, Any]],
) -> Entrant:
  """Makes an entrant that reads prompts, and then writes.

  Args:
    fields: What its figure says of it.
    prefill: Reads the prompts, and returns the state to write from.
    decode: Takes that state, writes all tokens, and returns the last state.
    facts: Takes the last state, and returns what else the figure says.
  """

  def run() -> dict[str, Any]:
    prefill_s, state = timed(prefill)
    decode_s, state = timed(decode, state)
    return {'prefill_s': prefill_s, 'decode_s': decode_s, **facts(state)}

  return Entrant(fields, run)


def warmed(entrant: Entrant) -> tuple[Entrant, dict[str, Any]]:
  """Runs an entrant twice, so that it is compiled.

  Returns:
    The entrant with a further field, `compile_s`: the first run's seconds
    beyond the second's. And the output of the second run.
  """
  first, second = entrant.run(), entrant.run()
  seconds = sum(first[x] - second[x] for x in second if x.endswith('_s'))
  fields = entrant.fields | {'compile_s': max(0.0, seconds)}
  return Entrant(fields, entrant.run), second


def take_turns[Output](
  runs: Sequence[Callable[[], Output]], repeats: int, description: str
) -> list[list[Output]]:
  """Calls every function once a turn, after a turn that only warms them up.

  Every other turn begins with the last function, so that none always runs
  after the same one.

  Args:
    runs: Functions without arguments.
    repeats: How many turns count.
    description: What the progress bar says.

  Returns:
    For each function, its outputs in the turns that count.
  """
  outputs: list[list[Output]] = [[] for _ in runs]
  order = list(range(len(runs)))
  with cli.progress(len(runs) * (repeats + 1), description) as bar:
    for turn in range(repeats + 1):
      for i in order if turn % 2 else reversed(order):
        output = runs[i]()
        if turn:
          outputs[i].append(output)
        bar.update()
  return outputs


def race(
  entrants: Sequence[Entrant], repeats: int, description: str
) -> list[dict[str, Any]]:
  """Times entrants that take turns.

  Args:
    entrants: The first one's tokens are those that others are compared with.
    repeats: How many turns count.
    description: What the progress bar says.

  Returns:
    A figure for each entrant: its fields, the seconds of all turns, its facts
    of the last one; for tokens, whether they are the same.
  """
  turns = take_turns([one.run for one in entrants], repeats, description)
  reference = turns[0][-1].get('first')
  figures = []
  for entrant, outputs in zip(entrants, turns, strict=True):
    figure = dict(entrant.fields)
    for name, value in outputs[-1].items():
      if name == 'first':
        figure['same_tokens'] = None
        if value is not None and reference is not None:
          # As far as the shorter answer goes.
          n = min(len(value), len(reference))
          figure['same_tokens'] = np.array_equal(value[:n], reference[:n])
      elif name.endswith('_s'):
        figure[name] = [output[name] for output in outputs]
      else:
        figure[name] = value
    figures.append(figure)
  return figures


def median(values: Sequence[float]) -> float:
  """The middle of several turns, which a busy moment moves least."""
  return float(np.median(values))


def check_whole(config: ConfigDict, *names: str) -> None:
  """Refuses fields that are no whole numbers from 1 on, or tuples of them."""
  for name in names:
    values = config[name] if isinstance(config[name], tuple) else [config[name]]
    if not values:
      raise ValueError(f'{name}: it is empty; give at least one.')
    for value in values:
      arguments.integer(name, value, 1)


def threshold(
  name: str, sign: str, bound: float, value: float
) -> tuple[str, ...]:
  """Compares a ratio with its bound.

  Args:
    name: What is measured.
    sign: '<=' if the ratio may be no more than the bound, or '>='.
    bound: The bound.
    value: The ratio.

  Returns:
    A row of a table with the head `THRESHOLDS`.
  """
  met = value <= bound if sign == '<=' else value >= bound
  found = f'{value:.2f}'
  return name, f'{sign} {bound:g}', found, 'yes' if met else '**no**'


def tables(
  columns: Mapping[str, tuple[str, int | None]],
  rows: Figures,
  thresholds: Sequence[tuple[str, ...]],
) -> list[Table]:
  """Makes tables of rows and of thresholds.

  Args:
    columns: By its head, the field that a column shows, and how many digits of
      it after the point, None for a text. A column of which no row has the
      field is left out.
    rows: A field that a row lacks is a dash.
    thresholds: From `threshold`.
  """
  shown = {
    head: column
    for head, column in columns.items()
    if any(row.get(column[0]) is not None for row in rows)
  }

  def cell(value: Any, digits: int | None) -> str:
    if value is None:
      return '-'
    return value if digits is None else f'{value:.{digits}f}'

  cells = [
    [cell(row.get(name), digits) for name, digits in shown.values()]
    for row in rows
  ]
  return [[list(shown), *cells], [THRESHOLDS, *thresholds]]


def text(table: Table) -> str:
  """Writes a table for a terminal."""
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  return '\n'.join(
    '  '.join(map(str.ljust, row, widths)).rstrip() for row in table
  )
