"""Runs the measurements of phases, one after the other, within a limit.

The limit holds between measurements: what was not begun is named. A measurement
that fails becomes a sentence, and the next one begins. Each figure is a line of
a file at once; a later run with the same device, versions and sizes skips the
figures that are there.
"""

import contextlib
import json
import pathlib
import time
from typing import Any

from cascades import files
from cascades.files import plain
from experiments import cli
from experiments.accelerators import device_facts, device_table, random_models
from experiments.accelerators.device_phases import PHASES, Sizes, limit

# Longest text of an error that is kept; XLA's list every allocation.
_MAX_ERROR = 300


def run(
  phases: list[str], sizes: Sizes, file: pathlib.Path, seconds: float
) -> str:
  """Measures what is missing of some phases, and returns the table."""
  end = time.monotonic() + seconds
  try:
    setting = device_facts.setting(sizes)
  except RuntimeError as error:
    raise ValueError(f'device: {sentence(error)}') from None
  figures, errors, left_out = _read(file, setting), {}, {}
  plans = {}
  for phase in phases:
    try:
      measurements = list(PHASES[phase].plan(sizes))
    except Exception as error:
      measurements, errors[phase, ''] = [], sentence(error)
    missing = [x for x in measurements if x.name not in figures[phase]]
    if missing:
      plans[phase] = missing
  for i, (phase, measurements) in enumerate(plans.items()):
    if PHASES[phase].drops_models:
      random_models.drop()
    start = time.monotonic()
    share = limit(phase, [*plans][i + 1 :], end - start)
    with cli.progress(len(measurements), phase) as bar:
      for name, measure in measurements:
        if time.monotonic() - start >= share:
          left_out.setdefault(phase, []).append(name)
          continue
        bar.set_postfix_str(name)
        try:
          figures[phase][name] = plain(measure())
        except Exception as error:
          errors[phase, name] = sentence(error)
        else:
          fields = {
            'phase': phase,
            'name': name,
            'figure': figures[phase][name],
          }
          # A run that was killed may have left a part of a line.
          with file.open('a', encoding='utf-8') as stream:
            stream.write(f'\n{json.dumps(fields | {"setting": setting})}\n')
        bar.update()
  return device_table.markdown(figures, errors, left_out)


def _read(file: pathlib.Path, setting: dict[str, Any]) -> device_table.Figures:
  """Reads the figures of earlier runs by phase and name."""
  figures: device_table.Figures = {name: {} for name in PHASES}
  if not file.exists():
    return figures
  text = files.read_bytes(file, 'workdir', 'delete it')
  for line in text.decode(errors='replace').splitlines():
    # A run that was killed leaves a part of a line.
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
      fields = json.loads(line)
      if fields['setting'] == setting:
        figures[fields['phase']][fields['name']] = fields['figure']
  return figures


def sentence(error: Exception) -> str:
  """Returns the sentence of an error of a measurement."""
  if isinstance(error, ModuleNotFoundError) and error.name:
    package = error.name.partition('.')[0]
    return f'{package}: the package is not installed; install it to measure.'
  text = files.sentence(cli.one_line(error))[:_MAX_ERROR]
  # The text of a ValueError was written for the user.
  is_own = type(error) is ValueError
  return text if is_own else f'{type(error).__name__}: {text}'
