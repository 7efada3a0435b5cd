"""A sweep that is killed in the midst of a point."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest
import small

pytestmark = pytest.mark.slow


def _start(workdir: pathlib.Path) -> subprocess.Popen:
  """Starts a curve of the quickstart on few examples, in several points."""
  verifier, drafter = small.pair()
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.sweep', '--quiet'),
      *('--config=configs/quickstart.py', f'--workdir={workdir}'),
      *('--config.method=token_v3', '--config.lenience=(0.0, 1.0)'),
      *('--config.tasks=("numerals",)', '--config.num_examples=6'),
      *(f'--config.verifier={verifier}', f'--config.drafter={drafter}'),
      '--config.shard_size=2',
    ],
    cwd=small.ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(workdir: pathlib.Path) -> None:
  process = _start(workdir)
  _, message = process.communicate()
  assert process.returncode == 0, message


def _files(workdir: pathlib.Path) -> dict[str, bytes]:
  """Those in which no timing is."""
  files = [*workdir.glob('examples/*'), *workdir.glob('traces/*')]
  return {path.name: path.read_bytes() for path in files}


def test_a_sweep_that_was_killed_ends_the_same(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  _finish(whole)
  process = _start(broken)
  while not any(broken.glob('records/*.jsonl')) and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  process.stderr.close()
  _finish(broken)
  assert small.answers(broken) == small.answers(whole)
  assert _files(broken) == _files(whole)
  assert not list(broken.glob('*/.*.part'))
