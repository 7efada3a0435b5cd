"""Sweeps on a real Ray cluster of two workers."""

import os
import pathlib
import signal
import threading
import time

import launching
import pytest
import small

from experiments import sweep
from experiments.sweeps import ray_cluster

ray = pytest.importorskip('ray', reason="pip install -e '.[ray]'")

pytestmark = pytest.mark.slow
_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('drafter_only', ()),
  small.curve('token_v3', (-1.0, 1.0), gamma=2),
  small.curve('sequence_mean', (0.05,)),
]


def _config(**fields):
  told = dict(num_examples=4, shard_size=2, ray=dict(cpus=1, retries=3))
  return small.config(**told | fields)


@pytest.fixture(scope='module')
def cluster():
  # Two workers with a thread each; the CPU's own number may be another.
  ray.init(
    num_cpus=2,
    include_dashboard=False,
    log_to_driver=False,
    runtime_env={'env_vars': ray_cluster.worker_environment()},
  )
  yield
  ray.shutdown()


@pytest.fixture(scope='module')
def local(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'local'
  sweep.run(_config(), _CURVES, path)
  return path


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
    if name.startswith(b'ray::_run_shard'):
      found.append(int(process.name))
  return found


def _check_same(workdir, local, points):
  """Looks whether a run has points and answers that a local one has."""
  names = {path.name for path in (workdir / 'records').iterdir()}
  # A name is of all that matters.
  assert names <= {path.name for path in (local / 'records').iterdir()}
  assert len(names) == points
  assert small.answers(workdir).items() <= small.answers(local).items()


def test_a_lost_worker_changes_nothing(cluster, local, tmp_path):
  workdir, killed = tmp_path / 'ray', []

  def kill():
    # Once something is done, something else is being done.
    while not killed:
      if any(workdir.glob('records/*.jsonl')) and (busy := _busy()):
        os.kill(busy[0], signal.SIGKILL)
        killed.append(busy[0])
      time.sleep(0.01)

  killer = threading.Thread(target=kill, daemon=True)
  killer.start()
  sweep.run(_config(), _CURVES, workdir, launcher='ray')
  killer.join(timeout=1)
  assert killed
  # Two shards of four curves.
  _check_same(workdir, local, 8)
  assert (workdir / 'report/index.html').exists()


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(ray={'cpus': 99}), 'needs 99 CPUs and 0 GPUs, but the cluster has 2'),
    (dict(ray={'gpus': 1}), '1 GPUs, but the cluster has 2 CPUs and 0 GPUs'),
    # A mistake of the pair, said as it is here.
    (dict(verifier='tiny-verifer'), "model: 'tiny-verifer' is not a name"),
  ],
)
def test_what_cannot_run_there_is_refused(cluster, tmp_path, fields, message):
  with pytest.raises(ValueError, match=message):
    sweep.run(_config(**fields), _CURVES, tmp_path / 'w', launcher='ray')
