"""A sweep that is killed at random moments; also a program.

`python tests/kills_test.py 20` kills a sweep of the quickstart's size that
often, and compares what it ends with.
"""

import math
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import small

from experiments import records

pytestmark = pytest.mark.slow
_ROOT = pathlib.Path(__file__).parents[1]
# One curve of the quickstart on few examples, in several points.
_SMALL = [
  '--config.method=token_v3',
  '--config.tasks=("numerals",)',
  '--config.num_examples=6',
  '--config.lenience=(0.0, 1.0)',
]


def _start(workdir: pathlib.Path, options: list[str]) -> subprocess.Popen:
  command = [sys.executable, '-m', 'experiments.sweep', '--quiet']
  command += ['--config=configs/quickstart.py', f'--workdir={workdir}']
  return subprocess.Popen(
    command + options,
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(process: subprocess.Popen) -> None:
  _, said = process.communicate()
  assert process.returncode == 0, said


def _said(workdir: pathlib.Path) -> dict[str, object]:
  """All that a sweep has written of its answers but timings."""
  files = [*workdir.glob('examples/*'), *workdir.glob('traces/*')]
  found: dict[str, object] = {
    str(path.relative_to(workdir)): path.read_bytes() for path in files
  }
  for name, lines in records.read_points(workdir).items():
    found[name] = [records.dumps(line).split('"wall_s"')[0] for line in lines]
  return found


def _done(workdir: pathlib.Path) -> int:
  return len(list(workdir.glob('records/*.jsonl')))


def check(kills: int, options: list[str], folder: pathlib.Path) -> None:
  """Kills a sweep so often, lets it end, and compares it with another one."""
  whole, broken = folder / 'whole', folder / 'broken'
  start = time.monotonic()
  _finish(_start(whole, options))
  seconds = time.monotonic() - start
  moments, points = random.Random(0), _done(whole)
  for kill in range(kills):
    # At any time, but all along the way.
    wanted = math.floor(points * (kill + moments.random()) / kills)
    process = _start(broken, options)
    while _done(broken) < wanted and process.poll() is None:
      time.sleep(0.01)
    # In the midst of the next point, or of a start.
    time.sleep(moments.uniform(0, seconds / points))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    said = f'kill {kill + 1}: {_done(broken)} of {points} points done'
    print(said, flush=True)
  _finish(_start(broken, options))
  want = _said(whole)
  assert _said(broken) == want
  assert not list(broken.glob('*/.*.part'))
  print(f'{len(want)} files are the same, with {kills} kills.')


def test_a_sweep_that_was_killed_ends_the_same(tmp_path):
  verifier, drafter = small.pair()
  pair = f'--config.verifier={verifier}', f'--config.drafter={drafter}'
  check(1, [*_SMALL, *pair, '--config.shard_size=2'], tmp_path)


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as name:
    check(int(sys.argv[1]), sys.argv[2:], pathlib.Path(name))
