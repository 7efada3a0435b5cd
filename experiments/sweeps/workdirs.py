"""The folder of a sweep: what is in it is whole, and says where it came from.

  config.json        the resolved config, and its curves
  provenance.json    for each start: command, commit, versions, device, data
  costs.json         unit costs
  examples/          see `experiments.records`, and so the next five
  records/           a file for each point that is done, under the point's name
  traces/
  views/
  race.jsonl
  stale/             points of other weights, data, code or versions
  summary.csv, report/
  trackers/          what is shown elsewhere, a folder for each tracker

Who runs a sweep holds its lock, which ends with the process, however that ends.
"""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import filelock

from cascades.untrusted import bounded, display, paths
from experiments import records
from experiments.records import metrics
from experiments.sweeps import plan

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _git(*arguments: str) -> str | None:
  """What git says of this code; None where it is in no checkout."""
  try:
    done = subprocess.run(
      ['git', '-C', str(_ROOT), *arguments],
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def _now() -> str:
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')


def provenance(facts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
  """Where results come from: this start of a sweep."""
  changes = _git('status', '--porcelain')
  return {
    'started': _now(),
    'command': display.without_secrets(shlex.join(sys.orig_argv)),
    'commit': _git('rev-parse', 'HEAD'),
    'dirty': None if changes is None else bool(changes),
    'python': platform.python_version(),
    'platform': platform.platform(),
    **facts,
    **more,
  }


class Workdir:
  """The files of a sweep.

  Attributes:
    path: The folder that they lie in.
  """

  def __init__(self, path: pathlib.Path):
    """Looks whether it can be written to.

    Args:
      path: The folder, which need not be there.

    Raises:
      ValueError: A link stands in it; what is written or deleted there might
        lie anywhere.
    """
    # Weights and Biases has links among its own files.
    paths.check_tree(path, ['trackers/wandb'])
    self.path = path

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Keeps all others out.

    Raises:
      ValueError: Another process is at work there.
    """
    owner = self.path / '.owner'
    lock = filelock.FileLock(self.path / '.lock')
    try:
      lock.acquire(timeout=0)
    except filelock.Timeout:
      try:
        said = bounded.read_bytes(owner, 'workdir', 'delete it', 2**10)
        who = display.printable(said.decode(errors='replace'))
      except (OSError, ValueError):
        who = 'another process'
      raise ValueError(
        f'workdir: {who} is at work in {self.path}; wait for it, or choose'
        ' another --workdir.'
      ) from None
    try:
      records.write_text(
        owner, f'process {os.getpid()} on {socket.gethostname()}'
      )
      yield
    finally:
      owner.unlink(missing_ok=True)
      lock.release()

  def claim(self, settings: Mapping[str, Any]) -> None:
    """Makes the folder this run's, or goes on with one of the same settings.

    Raises:
      ValueError: It holds another run's results.
    """
    bound = any(self.path.glob('records/*.jsonl'))
    records.claim(self.path / 'config.json', settings, 'run', bound)

  def code(self) -> str | None:
    """Names the code of the latest start; None before the first one."""
    starts = records.read_starts(self.path)
    return starts[-1].get('code') if starts else None

  def log(self, start: Mapping[str, Any]) -> None:
    """Adds a start of the sweep to its provenance."""
    self._write_starts([*records.read_starts(self.path), start])

  def log_end(self) -> None:
    """Adds to the latest start when it came to its end."""
    *others, start = records.read_starts(self.path)
    self._write_starts([*others, start | {'ended': _now()}])

  def _write_starts(self, starts: Sequence[Mapping[str, Any]]) -> None:
    text = json.dumps({'starts': starts}, indent=2)
    records.write_text(self.path / 'provenance.json', text + '\n')

  def costs(self, facts: Mapping[str, Any]) -> metrics.CostMeasurements | None:
    """Unit costs; None where there are none, or they are of other facts."""
    path, starts = self.path / 'costs.json', records.read_starts(self.path)
    if not path.exists():
      return None
    # What was measured before is as good as what would be now.
    if starts and any(starts[-1].get(k) != v for k, v in facts.items()):
      return None
    text = bounded.read_bytes(path, 'costs', 'delete it')
    return metrics.CostMeasurements.from_json(text)

  def keep_costs(self, measured: metrics.CostMeasurements) -> None:
    """Writes unit costs."""
    records.write_text(self.path / 'costs.json', measured.to_json())

  def write(self, name: str, values: Sequence) -> None:
    """Writes a file of lines: examples, views, or what arms took on the clock.

    Args:
      name: Its path in the folder.
      values: Of one kind.
    """
    records.write(self.path / name, values)

  def _paths(self, point: plan.Point) -> tuple[pathlib.Path, pathlib.Path]:
    return (
      self.path / f'records/{point.name}.jsonl',
      self.path / f'traces/{point.name}.jsonl.gz',
    )

  def keep(self, point: plan.Point, made: Sequence) -> None:
    """Writes what came of a point; once its records are there, it is done."""
    path, traces = self._paths(point)
    records.write(traces, [trace for _, trace in made])
    records.write(path, [record for record, _ in made])

  def records(
    self, points: Sequence[plan.Point]
  ) -> dict[str, list[records.Record]]:
    """The records of points that are done, by name, in their order."""
    return {point.name: records.read(self._paths(point)[0]) for point in points}

  def made(self, point: plan.Point) -> list | None:
    """What came of a point; None if it is not there, or no longer whole."""
    path, traces = self._paths(point)
    try:
      found = records.read(path), records.read(traces, records.Trace)
    except FileNotFoundError:
      return None
    except ValueError as error:
      said = display.sentence(f'{error}: it is made again.')
      print(said, file=sys.stderr)
      self._set_aside(path)
      return None
    wanted = (point.last - point.first) * max(1, len(point.curve.leniences))
    if {len(lines) for lines in found} != {wanted}:
      print(f'{path}: lines are missing: it is made again.', file=sys.stderr)
      self._set_aside(path)
      return None
    return list(zip(*found, strict=True))

  def sort_out(self, points: Sequence[plan.Point]) -> int:
    """Puts aside what is no point of these; how many files that were."""
    wanted = {path for point in points for path in self._paths(point)}
    stale = [
      path
      for path in (
        *self.path.glob('records/*.jsonl'),
        *self.path.glob('traces/*.jsonl.gz'),
      )
      if path not in wanted
    ]
    for path in stale:
      self._set_aside(path)
    for left in (*self.path.glob('*/.*.part'), *self.path.glob('.*.part')):
      # A process that was killed was writing it.
      left.unlink()
    return sum(path.suffix == '.jsonl' for path in stale)

  def _set_aside(self, path: pathlib.Path) -> None:
    folder = self.path / 'stale' / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.move(path, folder / path.name)
