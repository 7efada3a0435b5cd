"""Times entrants that take turns, so that other load slows all of them.

Compare ratios of one run, not seconds of two runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import cli, escapes


class Entrant(NamedTuple):
  """A participant: fields of its figure, and a run that returns more fields.

  Fields of the seconds of a run end with '_s'; 'first' are tokens to compare.
  """

  fields: dict[str, Any]
  run: Callable[[], dict[str, Any]]


class CompileClock:
  """Measures the seconds that JAX spends compiling."""

  def __init__(self):
    self.seconds = 0.0

    def add(event: str, duration: float, **_):
      if event.startswith('/jax/core/compile/'):
        self.seconds += duration

    jax.monitoring.register_event_duration_secs_listener(add)


def timed[Output](
  run: Callable[..., Output], *args: Any
) -> tuple[float, Output]:
  """Calls a function and waits for the arrays of its output."""
  start = time.perf_counter()
  output = jax.block_until_ready(run(*args))
  return time.perf_counter() - start, output


def take_turns[Output](
  runs: Sequence[Callable[[], Output]],
  repeats: int,
  seconds: float = 0.0,
  description: str = '',
) -> list[list[Output]]:
  """Calls every function once a turn, after a turn that is not counted.

  Every other turn has the reverse order, so that no function always runs after
  the same one. There are more turns than `repeats` until `seconds` are over.
  """
  outputs: list[list[Output]] = [[] for _ in runs]
  order = list(range(len(runs)))
  total, is_alone = len(runs) * (repeats + 1), jax.process_count() == 1
  with cli.progress(total, description, quiet=not description) as bar:
    for run in runs:
      run()
      bar.update()
    end = time.perf_counter() + seconds
    while repeats > 0 or (is_alone and time.perf_counter() < end):
      repeats -= 1
      order.reverse()
      for i in order:
        outputs[i].append(runs[i]())
        bar.update()
  return outputs


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


def race(
  entrants: Sequence[Entrant], repeats: int, description: str = ''
) -> list[dict[str, Any]]:
  """Times entrants that take turns; returns a figure of each."""
  turns = take_turns([x.run for x in entrants], repeats, 0.0, description)
  reference = turns[0][-1].get('first')
  figures = []
  for entrant, outputs in zip(entrants, turns, strict=True):
    figure = entrant.fields | outputs[-1]
    for name in outputs[-1]:
      if name.endswith('_s'):
        figure[name] = [output[name] for output in outputs]
    first = figure.pop('first', None)
    if first is not None and reference is not None:
      # Compares up to the length of the shorter answer.
      n = min(len(first), len(reference))
      figure['same_tokens'] = np.array_equal(first[:n], reference[:n])
    figures.append(figure)
  return figures


def median(values: Sequence[float]) -> float:
  """Returns the median of several turns, which outliers affect little."""
  return float(np.median(values))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a Markdown table with a column for each key that has a value."""
  columns = dict.fromkeys(
    name for row in rows for name, x in row.items() if x is not None
  )
  lines = [columns, ['---'] * len(columns)]
  lines += [[_cell(row.get(name)) for name in columns] for row in rows]
  return '\n'.join(
    f'| {" | ".join(map(escapes.for_markdown, cells))} |' for cells in lines
  )


def _cell(value: Any) -> str:
  """Formats numbers with four digits, None as a dash, and fields as a list."""
  if isinstance(value, dict):
    cells = {name: _cell(x) for name, x in value.items() if x is not None}
    return ', '.join(f'{name} {cell}' for name, cell in cells.items())
  if isinstance(value, float):
    return f'{value:.0f}' if abs(value) >= 1000 else f'{value:.4g}'
  return '-' if value is None else str(value)
