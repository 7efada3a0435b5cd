"""Sweeps on a real Ray cluster of this machine's workers."""

import os
import pathlib
import signal
import threading
import time

import launching
import pytest
import small

ray = pytest.importorskip('ray', reason="pip install -e '.[ray]'")

pytestmark = pytest.mark.slow


def _sweep(workdir, *flags):
  """Runs a sweep of eight points."""
  return launching.run('experiments.sweep', *small.flags(workdir), *flags)


_LISTENING = """
import psutil
from experiments.sweeps import ray_cluster
ray_cluster._connect('')
for child in psutil.Process().children(recursive=True):
  for one in child.net_connections():
    if one.status == 'LISTEN':
      print('listens', one.laddr.ip)
"""


def test_a_cluster_of_this_machine_listens_to_this_machine_alone():
  env = os.environ | {'PYTHONPATH': f'{small.ROOT}:{small.ROOT / "tests"}'}
  done = launching.python('-c', _LISTENING, env=env, timeout=120)
  listens = {x for x in done.stdout.splitlines() if x.startswith('listens')}
  assert listens, done.stderr[-2000:]
  assert {x.rpartition(':')[2].split()[-1] for x in listens} == {'127.0.0.1'}


def _busy() -> list[int]:
  """Processes of the cluster that are at work."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      name = (process / 'cmdline').read_bytes()
    except OSError:
      continue
    if name.startswith(b'ray::_run_command'):
      found.append(int(process.name))
  return found


def test_a_lost_worker_changes_nothing(tmp_path):
  workdir, local, killed = tmp_path / 'ray', tmp_path / 'local', []

  def kill():
    # Once something is done, something else is being done.
    while not killed:
      if any(workdir.glob('records/*.jsonl')) and (busy := _busy()):
        os.kill(busy[0], signal.SIGKILL)
        killed.append(busy[0])
      time.sleep(0.01)

  killer = threading.Thread(target=kill, daemon=True)
  killer.start()
  done = _sweep(workdir, '--launcher=ray')
  assert done.returncode == 0, done.stderr
  assert 'Report: ' in done.stdout
  killer.join(timeout=1)
  assert killed
  assert _sweep(local).returncode == 0
  folders = workdir / 'records', local / 'records'
  names = [{x.name for x in folder.glob('*.jsonl')} for folder in folders]
  # A name is of all that matters.
  assert names[0] == names[1]
  assert small.answers(workdir) == small.answers(local)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      {'ray.cpus': 999, 'ray.gpus': 1},
      'needs 999 CPUs and 1 GPUs, but the cluster has ',
    ),
    # A mistake of the pair, said as it is here.
    ({'verifier': 'tiny-verifer'}, "model: 'tiny-verifer' is not a name"),
  ],
)
def test_what_cannot_run_there_is_refused(tmp_path, fields, message):
  flags = (f'--config.{name}={x}' for name, x in fields.items())
  done = _sweep(tmp_path / 'w', '--launcher=ray', *flags)
  assert done.returncode == 2
  assert message in done.stderr
