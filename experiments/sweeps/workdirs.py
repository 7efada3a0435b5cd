"""The workdir of a sweep: its files, their provenance, and its lock.

  config.json        the plan: resolved config, curves and names of points
  provenance.json    for each start: command, commit, versions, device, data
  costs.json         unit costs
  predicted.csv      points that are predicted from the verifier's answers
  corrected.csv      the same, from answers of the decoded points too
  examples/, records/, traces/, race.jsonl
                     see `experiments.records`
  summary.csv        a row for each point
  report/            the page
  wandb/             files of Weights & Biases

Each file is written as a whole. A point is done when its file in records/
exists; whoever comes second does not make it again. The process of a sweep
holds a lock, which ends with the process; shards share the plan's.
"""

import contextlib
import datetime
import json
import pathlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import filelock

from cascades import files
from experiments import records
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


def now() -> str:
  """Returns the time in UTC, to the second, as ISO 8601."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')


def provenance(facts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
  """Returns the provenance of results: one start of a sweep."""
  changes = _git('status', '--porcelain', '--untracked-files=no')
  return {
    'started': now(),
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
    records.check_tree(path)
    self.path = path

  def lock(self) -> contextlib.AbstractContextManager:
    """Locks the folder against other processes."""
    try:
      return filelock.FileLock(self.path / '.lock').acquire(timeout=0)
    except filelock.Timeout:
      raise ValueError(
        f'workdir: another process is using {self.path}; wait until it ends, or'
        ' choose another --workdir.'
      ) from None

  def lock_plan(self) -> filelock.BaseFileLock:
    """Locks the plan and the starts for a moment, against shards too."""
    return filelock.FileLock(self.path / '.plan.lock')

  def log(self, start: Mapping[str, Any], index: int | None = None) -> int:
    """Adds a start of the sweep, or replaces one; returns its index."""
    with self.lock_plan():
      starts = records.read_starts(self.path)
      index = len(starts) if index is None else index
      starts[index : index + 1] = [dict(start)]
      text = json.dumps({'starts': starts}, indent=2)
      records.write_text(self.path / 'provenance.json', text + '\n')
    return index

  def paths(self, point: plan.Point) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the paths of a point's records and traces."""
    return (
      self.path / f'records/{point.name}.jsonl',
      self.path / f'traces/{point.name}.jsonl.gz',
    )

  def write_point(
    self, point: plan.Point, outcomes: Sequence[records.Outcome]
  ) -> None:
    """Writes the outcomes of a point, its records last."""
    path, traces = self.paths(point)
    records.write(traces, [outcome.trace for outcome in outcomes])
    records.write(path, [outcome.record for outcome in outcomes])

  def is_done(self, point: plan.Point) -> bool:
    """True if a point is in the folder."""
    return all(path.exists() for path in self.paths(point))

  def read_records(self, point: plan.Point) -> list[records.Record]:
    """Reads the records of a point that is done."""
    path, _ = self.paths(point)
    lines = records.read(path)
    if len(lines) != point.num_answers:
      raise ValueError(
        f'workdir: {path} lacks lines; delete it, and run the sweep again.'
      )
    return lines
