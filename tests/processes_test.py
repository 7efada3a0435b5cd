"""Sweeps in two processes of two devices, undisturbed and killed."""

import pathlib
import re
import signal
import subprocess
import sys
import time

import launching
import pytest
import small

from experiments import records

pytestmark = pytest.mark.slow


def wait_for(condition) -> None:
  end = time.monotonic() + 600
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


def start(workdir: pathlib.Path, *flags: str, devices=2) -> subprocess.Popen:
  """Starts a process of a sweep of four points."""
  flags = '-m', 'experiments.sweep', *small.flags(workdir, shard_size=4), *flags
  options = dict(cwd=small.ROOT, env=launching.on_devices(devices), text=True)
  options |= dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  return subprocess.Popen([sys.executable, *flags], **options)


def _start_two(workdir, mesh='(2, 2)', seeds=(1, 1)) -> list[subprocess.Popen]:
  mesh = f'--config.mesh={mesh}'
  place = f'--distributed=localhost:{launching.free_port()},2'
  return [
    start(path, mesh, f'{place},{i}', f'--config.seed={seeds[i]}')
    for i, path in enumerate([workdir, workdir.with_name('of_nobody')])
  ]


def finish(*processes: subprocess.Popen) -> list[str]:
  """Waits for processes, which must end well; returns what they say."""
  messages = launching.finish(*processes)
  assert not any(process.returncode for process in processes), messages
  return messages


def files_of(workdir: pathlib.Path) -> dict[str, bytes]:
  """The files of a workdir in which no time is, and records without theirs."""
  files = [*workdir.glob('examples/*'), *workdir.glob('traces/*')]
  timed = {
    path.name: re.sub(rb'"wall_s": [^,}]+', b'', path.read_bytes())
    for path in workdir.glob('records/*')
  }
  return timed | {path.name: path.read_bytes() for path in files}


def test_killed_at_any_point_two_processes_end_as_one_that_was_not(tmp_path):
  alone, broken = tmp_path / 'alone', tmp_path / 'broken'
  flags = '--config.mesh=(2, 2)', '--config.seed=1'
  finish(start(alone, *flags, devices=4))

  def points() -> int:
    return len([*broken.glob('records/*.jsonl')])

  for is_there, victim, number in (
    # While the models are loaded; between two points.
    (lambda: (broken / '.lock').exists(), 0, signal.SIGTERM),
    (lambda: points() >= 1, 1, signal.SIGKILL),
  ):
    processes = _start_two(broken)
    wait_for(is_there)
    assert processes[victim].poll() is None
    processes[victim].send_signal(number)
    messages = launching.finish(*processes, timeout=60)
    assert processes[1 - victim].returncode, messages
    assert points() < 4
  messages = finish(*_start_two(broken))
  assert files_of(broken) == files_of(alone)
  assert len(small.read_json(broken / 'costs.json')['times']) == 2
  assert records.read_starts(broken)[-1]['ended']
  for name in ('race.jsonl', 'report/index.html'):
    assert (broken / name).exists(), messages
  assert not broken.with_name('of_nobody').exists()


def test_a_sweep_that_was_killed_ends_the_same(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  finish(start(whole, devices=1))
  process = start(broken, devices=1)
  points = broken / 'records'
  wait_for(lambda: process.poll() is not None or any(points.glob('*.jsonl')))
  process.send_signal(signal.SIGKILL)
  launching.finish(process)
  done = launching.run('experiments.report', f'--workdir={broken}')
  assert (done.returncode, done.stderr) == (4, '')
  assert 'lacks ' in done.stdout
  # Shards decode side by side what is left.
  shards = ('--shard=1/2', '--shard=2/2')
  finish(*(start(broken, x, devices=1) for x in shards))
  assert not records.read_plan(broken)[1]
  points = {path.name for path in broken.glob('records/*')}
  assert not (broken / 'summary.csv').exists()
  finish(start(broken, devices=1))
  assert {path.name for path in broken.glob('records/*')} >= points
  assert small.answers(broken) == small.answers(whole)
  assert files_of(broken) == files_of(whole)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(mesh='(2, 1)'), 'mesh: 2 x 1 are 2 devices, but the processes have'),
    (dict(seeds=(1, 2)), 'distributed: the processes differ in'),
  ],
)
def test_what_two_processes_cannot_do_is_refused(tmp_path, fields, message):
  processes = _start_two(tmp_path / 'run', **fields)
  messages = launching.finish(*processes)
  assert all(process.returncode for process in processes)
  assert any(f'error: {message}' in text for text in messages), messages
  assert not (tmp_path / 'run').exists()
