"""Measures in another process, which is ended if it hangs.

This process does not touch the device. A compilation cannot be interrupted, and
a fault of the driver ends a process: then the phase's partial file becomes its
file, with a sentence, and the next phase begins in a new process.
"""

import multiprocessing
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from experiments.accelerators import measuring, phase_results
from experiments.accelerators.device_phases import PHASES, Sizes, limit
from experiments.accelerators.phase_results import PhaseResult, Setting

# Seconds that a process may take to find its device.
_START_SECONDS = 180
# A measurement may exceed its phase's limit by this share of the limit, and by
# these seconds.
_GRACE_SHARE, _GRACE_SECONDS = 0.25, 30


def _serve(pipe: Any, sizes: Sizes, folder: pathlib.Path) -> None:
  """Runs in the other process."""
  # The first process ends this one.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  if sizes.tiny:
    # Compiling is most of the time of a rehearsal.
    flags = os.environ.get('XLA_FLAGS', '')
    os.environ['XLA_FLAGS'] = f'{flags} --xla_backend_optimization_level=0'
  # Compile times are figures.
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  # Not all of the device's memory at once: its peak is a figure.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

  def make_setting() -> Setting:
    from experiments.accelerators import device_facts

    return device_facts.setting(sizes)

  measuring.serve(pipe, sizes, folder, make_setting)


class Worker:
  """A process that measures phases.

  Attributes:
    setting: The setting of its figures.
  """

  def __init__(self, sizes: Sizes, folder: pathlib.Path):
    # A forked process has all flags and modules; this one has no threads.
    context = multiprocessing.get_context('fork')
    self._pipe, pipe = context.Pipe()
    self._process = context.Process(
      target=_serve, args=(pipe, sizes, folder), daemon=True
    )
    # The process has a copy of the buffers, and would write them again.
    sys.stdout.flush()
    self._process.start()
    # So that the end of the process ends the connection.
    pipe.close()
    self.setting = self._receive(_START_SECONDS)
    if not isinstance(self.setting, Setting):
      self.end()
      silence = f'its process ended or took {_START_SECONDS} s; see stderr.'
      raise ValueError(f'device: {self.setting or silence}')

  def _receive(self, seconds: float) -> Any:
    """Returns the next answer; None if there is none in time, or ever."""
    try:
      return self._pipe.recv() if self._pipe.poll(max(0.0, seconds)) else None
    except (EOFError, ConnectionError):
      return None

  def measure(self, phase: str, seconds: float, grace: float) -> str:
    """Measures a phase, whose file is written in any case."""
    try:
      self._pipe.send((phase, seconds))
    except OSError:
      return 'the process ended before the phase'
    if self._receive(seconds + grace):
      return ''
    # A process that crashed closes the connection before it ends.
    self._process.join(1)
    code = self._process.exitcode
    self.end()
    if code is None:
      return f'it exceeded its limit of {seconds:.0f} s by {grace:.0f} s'
    return f'the process ended with exit code {code}'

  def end(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.join()


def run(
  names: Sequence[str], sizes: Sizes, folder: pathlib.Path, seconds: float
) -> None:
  """Measures what is missing of some phases."""
  end = time.monotonic() + seconds
  results = phase_results.read_all(folder)
  missing = [x for x in names if x not in results or not results[x].is_complete]
  worker, has_measured = None, False
  try:
    for i, phase in enumerate(missing):
      if worker and PHASES[phase].new_process and has_measured:
        worker.end()
        worker = None
      if worker is None:
        worker, has_measured = Worker(sizes, folder), False
        _check_setting(worker.setting, results, folder)
      left = end - time.monotonic()
      share = limit(phase, missing[i + 1 :], left)
      grace = _GRACE_SECONDS + min(_GRACE_SHARE * share, max(0, left - share))
      reason = worker.measure(phase, share, grace)
      has_measured = True
      if reason:
        _close(folder, phase, worker.setting, reason)
        worker = None
  finally:
    if worker is not None:
      worker.end()


def _check_setting(
  setting: Setting, results: dict[str, PhaseResult], folder: pathlib.Path
) -> None:
  """Refuses to continue results of another device, version or size."""
  for result in results.values():
    changed = setting.differences(result.setting)
    if changed:
      raise ValueError(
        f'workdir: {folder} holds results of another {", ".join(changed)};'
        ' choose another --workdir, or delete it.'
      )


def _close(
  folder: pathlib.Path, phase: str, setting: Setting, reason: str
) -> None:
  """Writes the file of a phase whose process has ended."""
  result = phase_results.read_latest(folder, phase, setting)
  errors = {**result.errors, result.current: f'stopped: {reason}.'}
  phase_results.write(folder, phase, result.changed(errors=errors, current=''))
