"""Sweeps in two processes of two devices, undisturbed and killed."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import launching
import pytest
import small

from experiments import cli, records
from experiments.sweeps import group_worker, process_group

_LOST = (
  r'error: distributed: process {} ended before the others; its output says'
  r' why, and the same command resumes the sweep\.'
)


# --- The connections, within this process ---


@pytest.fixture
def ends(monkeypatch):
  """The processes that a group ended with, instead of the end of this one."""
  others: list[int] = []
  monkeypatch.setattr(process_group, '_end_with', others.append)
  return others


def _pair() -> tuple[process_group.Group, process_group.Group]:
  """A leader and another process, connected."""
  one, other = socket.socketpair()
  return process_group.Group(0, {1: one}), process_group.Group(1, {0: other})


def wait_for(condition, seconds: float = 60) -> None:
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


@pytest.mark.parametrize('same', [True, False])
def test_processes_agree_or_all_of_them_say_who_differs(same, ends):
  leader, other = _pair()
  errors = []

  def agree(group, digest):
    try:
      group.agree(digest, 'a config')
    except ValueError as error:
      errors.append(str(error))

  thread = threading.Thread(target=agree, args=(other, 'a'))
  thread.start()
  agree(leader, 'a' if same else 'b')
  thread.join()
  told = (
    'distributed: process 1 has a config that differ from those of process 0;'
    ' start all processes with the same command, files and versions.'
  )
  assert errors == ([] if same else [told, told])
  leader.end(is_stopped=False)
  assert other.receive() == {'order': 'end', 'is_stopped': False}
  # Who is done may go, in any order.
  leader.close()
  other.close()
  assert not ends


@pytest.mark.parametrize('gone', [0, 1])
def test_who_is_gone_ends_the_other(gone, ends):
  groups = _pair()
  groups[gone].close()
  wait_for(lambda: ends == [gone])
  groups[1 - gone].close()


def test_a_process_says_why_it_ends_once(monkeypatch):
  ending, ended = threading.Event(), threading.Event()

  def end_with(peer):
    del peer
    ending.set()
    ended.wait()

  monkeypatch.setattr(process_group, '_end_with', end_with)
  leader, other = _pair()
  leader.close()
  assert ending.wait(60)
  # An error of its own, which it would print after this.
  closing = threading.Thread(target=other.close)
  closing.start()
  closing.join(0.2)
  assert closing.is_alive()
  ended.set()
  closing.join()


def test_what_is_no_message_ends_a_process_too(ends):
  one, other = socket.socketpair()
  leader = process_group.Group(0, {1: one})
  other.sendall(b'GET / HTTP/1.1\n')
  wait_for(lambda: ends == [1])
  leader.close()


def test_only_who_knows_the_token_connects():
  store = mock.Mock()
  stored = threading.Event()
  store.key_value_set.side_effect = lambda *_: stored.set()
  accepted = {}

  def accept():
    accepted.update(process_group._accept(store, 'localhost', 2))

  thread = threading.Thread(target=accept)
  thread.start()
  stored.wait()
  port = store.key_value_set.call_args[0][1].split()[0]
  with socket.create_connection(('localhost', int(port))) as stranger:
    stranger.sendall(b'0123456789abcdef 1 2\n')
    # It is hung up on.
    assert stranger.recv(1) == b''
  store.blocking_key_value_get.return_value = store.key_value_set.call_args[0][
    1
  ]
  connection = process_group._connect(store, 'localhost', 1, 2)
  thread.join()
  assert [*accepted] == [1]
  accepted[1].sendall(b'x')
  assert connection.recv(1) == b'x'
  accepted[1].close()
  connection.close()


def test_a_stop_of_the_leader_stops_the_others():
  group = mock.Mock()
  group.receive.return_value = {'order': 'end', 'is_stopped': True}
  with pytest.raises(cli.StoppedError):
    group_worker.follow(group, mock.Mock(), [], [], {})


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('localhost:12,2', 'must be auto or HOST:PORT,PROCESSES,INDEX, got'),
    ('localhost,2,0', 'must be auto or'),
    (':12,2,0', 'must be auto or'),
    ('localhost:99999,2,0', 'must be auto or'),
    ('localhost:12,2,2', r'the index must be at least 0 .* got 2 of 2; give'),
    ('localhost:12,0,0', 'the index must be'),
  ],
)
def test_a_place_that_is_none(flag, message):
  with pytest.raises(ValueError, match=f'^distributed: {message}'):
    process_group.parse_place(flag)


def test_the_place_of_a_process():
  assert process_group.parse_place('auto') == (None, None, None)
  assert process_group.parse_place('[::1]:12,3,1') == ('[::1]:12', 3, 1)


def test_a_mesh_has_all_devices():
  with pytest.raises(ValueError, match=r'^mesh: 4000 x 2 are 8000 devices'):
    group_worker.check_mesh((4000, 2))


# --- Sweeps, in processes of their own ---


def start(
  workdir: pathlib.Path, *flags: str, devices: int = 2
) -> subprocess.Popen:
  """Starts a process of a sweep of four points."""
  verifier, drafter = small.pair()
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.sweep', '--quiet', *flags),
      *(f'--workdir={workdir}', '--config.num_examples=8'),
      *(f'--config.verifier={verifier}', f'--config.drafter={drafter}'),
      '--config.shard_size=2',
    ],
    cwd=small.ROOT,
    # Compiled once for all starts.
    env=launching.on_devices(devices)
    | dict(XDG_CACHE_HOME=str(workdir.parent / 'cache')),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


# A curve of the quickstart, in four points.
NUMERALS = (
  *('--config=configs/quickstart.py', '--config.tasks=("numerals",)'),
  *('--config.method=token_v3', '--config.lenience=(0.0, 1.0)'),
)
# The config for data, with two curves.
_CONFIG = """
from configs import your_data
get_config = your_data.get_config
def sweep(add):
  add(method='verifier_only', lenience=())
  add(method='token_v3', lenience=(0.5,))
"""


def _start_two(
  workdir: pathlib.Path, *flags: str, mesh: str = '(2, 2)'
) -> list[subprocess.Popen]:
  port = launching.free_port()
  return [
    start(
      workdir if i == 0 else workdir.with_name('of_nobody'),
      *flags,
      *(f'--config.mesh={mesh}', f'--distributed=localhost:{port},2,{i}'),
    )
    for i in range(2)
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


def _kill(processes, victim: int, number: int) -> None:
  """Kills one of two processes; the other must end soon, with a sentence."""
  assert processes[victim].poll() is None
  processes[victim].send_signal(number)
  start = time.monotonic()
  messages = launching.finish(*processes, timeout=60)
  assert time.monotonic() - start < 60
  other = processes[1 - victim]
  assert other.returncode == process_group.EXIT_CODE, messages
  assert re.search(_LOST.format(victim), messages[1 - victim]), messages
  assert messages[1 - victim].count('error:') == 1, messages
  assert 'Terminating process' not in messages[1 - victim]


@pytest.mark.slow
def test_killed_at_any_point_two_processes_end_as_one_that_was_not(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  finish(start(whole, *NUMERALS, '--config.mesh=(2, 2)', devices=4))

  def points() -> int:
    return len([*broken.glob('records/*.jsonl')])

  for is_there, victim, number in (
    # While the models are loaded; in the midst of a curve; between two points.
    (lambda: (broken / '.owner').exists(), 0, signal.SIGTERM),
    (lambda: (broken / 'costs.json').exists(), 1, signal.SIGKILL),
    (lambda: points() >= 1, 0, signal.SIGKILL),
  ):
    processes = _start_two(broken, *NUMERALS)
    wait_for(
      lambda is_there=is_there, own=processes: (
        is_there() or any(x.poll() is not None for x in own)
      ),
      600,
    )
    _kill(processes, victim, number)
    assert points() < 4
    (broken / '.owner').unlink(missing_ok=True)
  finish(*_start_two(broken, *NUMERALS))
  assert files_of(broken) == files_of(whole)
  assert not list(broken.glob('*/.*.part'))
  assert not broken.with_name('of_nobody').exists()
  # The records of one device have the same tokens.
  alone = tmp_path / 'alone'
  finish(start(alone, *NUMERALS, devices=1))
  assert _tokens(broken) == _tokens(alone)


def _tokens(workdir: pathlib.Path) -> dict:
  return {
    (record.point, record.id): trace.tokens
    for record, trace in small.made(workdir)
  }


@pytest.mark.slow
def test_two_processes_measure_and_decide_once(tmp_path):
  rows = [
    dict(id=f'{i}', prompt=f'The number {i} in words:', reference='one')
    for i in range(8)
  ]
  data, workdir = tmp_path / 'rows.jsonl', tmp_path / 'run'
  data.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  (tmp_path / 'few.py').write_text(_CONFIG)
  flags = (
    f'--config={tmp_path}/few.py',
    *(f'--data={data}', '--metric=short_answer', '--config.clock=1'),
    # Each step of two processes takes long on a CPU.
    '--config.task.max_new_tokens=6',
  )
  messages = finish(*_start_two(workdir, *flags))
  assert ['time: ' in text for text in messages] == [True, False], messages
  (start,) = records.read_starts(workdir)
  assert start['ended']
  assert len(small.read_json(workdir / 'costs.json')['times']) == 2
  for file in 'decision.json', 'race.jsonl', 'report/index.html':
    assert (workdir / file).stat().st_size, file


@pytest.mark.slow
def test_what_two_processes_cannot_do_is_said_by_both(tmp_path):
  for mesh, flags, message in (
    # Four devices.
    ('(2, 1)', [], 'mesh: 2 x 1 are 2 devices, but the processes have 4;'),
    ('(2, 2)', ['--launcher=ray'], 'distributed: cannot be combined with --'),
  ):
    processes = _start_two(tmp_path / 'run', *NUMERALS, *flags, mesh=mesh)
    said = launching.finish(*processes)
    for process, text in zip(processes, said, strict=True):
      # The one that ends first may end the other.
      assert process.returncode in (2, process_group.EXIT_CODE)
      assert text.count('error:') == 1, text
    assert any(f'error: {message}' in text for text in said), said
    assert not (tmp_path / 'run').exists()
