"""The workdir of a sweep: its files, their provenance, and its lock.

  config.json        the resolved config, and its curves
  provenance.json    for each start: command, commit, versions, device, data
  costs.json         unit costs
  examples/, records/, traces/, race.jsonl
                     see `experiments.records`
  summary.csv        a row for each point
  report/            the page
  wandb/             files of Weights & Biases

Each file is written as a whole. A point is done when its file in records/
exists. The process of a sweep holds a lock, which ends with the process.
"""

import contextlib
import datetime
import json
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import filelock

from cascades import files
from experiments import records
from experiments.records import unit_costs
from experiments.sweeps import plan

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _git(*arguments: str) -> str | None:
  """Returns the output of a git command on this code; None if it fails."""
  try:
    process = subprocess.run(
      ['git', '-C', str(_ROOT), *arguments],
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return process.stdout.strip()


def _now() -> str:
  """Returns the time in UTC, to the second, as ISO 8601."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')


def provenance(facts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
  """Returns the provenance of results: one start of a sweep."""
  changes = _git('status', '--porcelain')
  return {
    'started': _now(),
    'command': files.without_secrets(shlex.join(sys.orig_argv)),
    'commit': _git('rev-parse', 'HEAD'),
    'dirty': None if changes is None else bool(changes),
    'python': platform.python_version(),
    'platform': platform.platform(),
    **facts,
    **more,
  }


class Workdir:
  """The files of a sweep."""

  def __init__(self, path: pathlib.Path):
    """Checks that the folder holds no links."""
    # Weights & Biases has links among its own files.
    files.check_tree(path)
    self.path = path

  def lock(self, name: str = '.lock') -> contextlib.AbstractContextManager:
    """Locks the folder, or a shard of a name, against other processes."""
    try:
      return filelock.FileLock(self.path / name).acquire(timeout=0)
    except filelock.Timeout:
      raise ValueError(
        f'workdir: another process is using {self.path}; wait until it ends, or'
        ' choose another --workdir.'
      ) from None

  def claim(
    self,
    settings: Mapping[str, Any],
    replaceable: Sequence[str] = (),
    write: bool = True,
  ) -> None:
    """Writes the settings, or checks that they are those of the folder."""
    bound, path = (
      any(self.path.glob('records/*.jsonl')),
      self.path / 'config.json',
    )
    records.claim(
      path, settings, 'run', bound, replaceable=replaceable, write=write
    )
    if write and not bound:
      # Unit costs may lack the blocks of these settings.
      (self.path / 'costs.json').unlink(missing_ok=True)

  def log_start(self, start: Mapping[str, Any]) -> None:
    """Adds a start of the sweep to its provenance; the last names points."""
    earlier = records.read_starts(self.path)
    earlier = [{k: v for k, v in x.items() if k != 'points'} for x in earlier]
    self._write_starts([*earlier, start])

  def log_end(self) -> None:
    """Adds the time of its end to the latest start."""
    *earlier, start = records.read_starts(self.path)
    self._write_starts([*earlier, start | {'ended': _now()}])

  def _write_starts(self, starts: Sequence[Mapping[str, Any]]) -> None:
    """Writes the provenance."""
    text = json.dumps({'starts': starts}, indent=2)
    records.write_text(self.path / 'provenance.json', text + '\n')

  def read_costs(
    self, facts: Mapping[str, Any]
  ) -> unit_costs.CostMeasurements | None:
    """Reads unit costs; returns None if there are none of the same facts."""
    path, starts = self.path / 'costs.json', records.read_starts(self.path)
    if not path.exists() or not starts:
      return None
    if any(starts[-1].get(k) != v for k, v in facts.items()):
      return None
    text = files.read_bytes(path, 'costs', 'delete it')
    return unit_costs.CostMeasurements.from_json(text)

  def _paths(self, point: plan.Point) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the paths of a point's records and traces."""
    return (
      self.path / f'records/{point.name}.jsonl',
      self.path / f'traces/{point.name}.jsonl.gz',
    )

  def write_point(
    self, point: plan.Point, outcomes: Sequence[records.Outcome]
  ) -> None:
    """Writes the outcomes of a point, its records last."""
    path, traces = self._paths(point)
    records.write(traces, [outcome.trace for outcome in outcomes])
    records.write(path, [outcome.record for outcome in outcomes])

  def is_done(self, point: plan.Point) -> bool:
    """True if a point is in the folder."""
    return all(path.exists() for path in self._paths(point))

  def read_records(
    self, points: Sequence[plan.Point]
  ) -> dict[str, list[records.Record]]:
    """Reads the records of points that are done, by name of the point."""
    read = {}
    for point in points:
      path, _ = self._paths(point)
      read[point.name] = records.read(path)
      if len(read[point.name]) != point.num_answers:
        raise ValueError(
          f'workdir: {path} lacks lines; delete it, and run the sweep again.'
        )
    return read

  def read_point(self, point: plan.Point) -> list[records.Outcome]:
    """Reads the outcomes of a point that is done."""
    path, traces = self._paths(point)
    columns = records.read(path), records.read(traces, records.Trace)
    return list(map(records.Outcome, *columns))

  def count_others(self, points: Sequence[plan.Point]) -> int:
    """Returns the number of points of anything else than a sweep."""
    names = {path.stem for path in self.path.glob('records/*.jsonl')}
    return len(names - {point.name for point in points})

  def delete_parts(self) -> None:
    """Deletes what processes that were killed wrote of files."""
    for part in (*self.path.glob('*/.*.part'), *self.path.glob('.*.part')):
      shutil.rmtree(part)
