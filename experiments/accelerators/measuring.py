"""Runs the measurements of a phase, one after the other, within a limit.

The limit holds between measurements: what was not begun is named. A measurement
that fails becomes a sentence, and the next one begins. After each measurement
the figures so far are written to a partial file, which the phase's own file
replaces at the end.
"""

import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from cascades.plain import plain
from cascades.untrusted import display
from experiments import cli
from experiments.accelerators import phase_results
from experiments.accelerators.device_phases import PHASES, Sizes
from experiments.accelerators.phase_results import PhaseResult, Setting

# Longest text of an error that is kept; XLA's list every allocation.
_MAX_ERROR = 300


def measure(
  phase: str,
  sizes: Sizes,
  setting: Setting,
  *,
  folder: pathlib.Path,
  seconds: float,
  quiet: bool = False,
) -> PhaseResult:
  """Runs what is missing of a phase, and writes its file."""
  start, parent = time.monotonic(), os.getppid()
  before = phase_results.read_latest(folder, phase, setting)
  figures, errors, left_out = dict(before.figures), {}, []

  def result(current: str = '') -> PhaseResult:
    # A copy, since the dictionaries grow.
    return before.changed(
      seconds=before.seconds + time.monotonic() - start,
      figures=dict(figures),
      errors=dict(errors),
      left_out=list(left_out),
      current=current,
    )

  try:
    measurements = list(PHASES[phase].plan(sizes))
  except Exception as error:
    measurements, errors[''] = [], sentence(error)
  missing = [x for x in measurements if x.name not in figures]
  with cli.progress(len(missing), PHASES[phase].title, quiet) as bar:
    for measurement in missing:
      # The process that waits for the results may have been killed.
      if time.monotonic() - start >= seconds or os.getppid() != parent:
        left_out.append(measurement.name)
        continue
      bar.set_postfix_str(measurement.name)
      current = result(measurement.name)
      phase_results.write(folder, phase, current, partial=True)
      try:
        figures[measurement.name] = plain(measurement.run())
      except Exception as error:
        errors[measurement.name] = sentence(error)
      bar.update()
  final = result()
  phase_results.write(folder, phase, final)
  return final


def sentence(error: Exception) -> str:
  """Returns the sentence of an error of a measurement."""
  if isinstance(error, ModuleNotFoundError) and error.name:
    package = error.name.partition('.')[0]
    return f'{package}: the package is not installed; install it to measure.'
  text = display.sentence(cli.one_line(error))[:_MAX_ERROR]
  # The text of a ValueError was written for the user.
  is_own = type(error) is ValueError
  return text if is_own else f'{type(error).__name__}: {text}'


def serve(
  pipe: Any,
  sizes: Sizes,
  folder: pathlib.Path,
  make_setting: Callable[[], Setting],
) -> None:
  """Measures the phases that another process asks for."""
  try:
    setting = make_setting()
  except Exception as error:
    pipe.send(sentence(error))
    return
  pipe.send(setting)
  while True:
    try:
      phase, seconds = pipe.recv()
    except EOFError:
      return
    measure(phase, sizes, setting, folder=folder, seconds=seconds)
    pipe.send(True)
