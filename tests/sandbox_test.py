"""Programs that mean harm are failed examples, and the caller goes on."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from experiments.tasks import confined, sandbox

pytestmark = pytest.mark.skipif(
  sys.platform != 'linux', reason='the sandbox needs Linux'
)
# For programs that use it up, and for those that do not, on a busy machine too.
_SHORT_S, _LONG_S = 0.5, 30.0


def _run(program, tests='', **limits):
  return sandbox.run(program, tests, **{'timeout_s': _LONG_S} | limits)


def test_a_right_program_passes_and_a_wrong_one_does_not():
  double = 'def double(n):\n  return 2 * n'
  assert _run(double, 'assert double(4) == 8').passed
  wrong = _run(double, 'assert double(4) == 8\nassert double(4) == 9')
  assert wrong.result == 'failed'
  assert 'AssertionError' in wrong.output
  assert _run('def double(n:').result == 'failed'
  assert _run('print("out"); raise ValueError("why")').output.startswith('out')


def test_the_standard_library_is_there():
  names = (
    'array bisect cmath collections copy datetime decimal fractions functools'
    ' hashlib heapq inspect itertools json math operator random re statistics'
    ' string sys typing unicodedata zlib'
  ).replace(' ', ', ')
  program = f"""import {names}, dataclasses, os
@dataclasses.dataclass
class Point:
  x: 'int' = 1
print(datetime.datetime.now(), random.random(), time := os.times())
assert os.listdir() == []
"""
  outcome = _run(program, 'assert Point() == Point(1)')
  assert outcome.passed, outcome.output


def test_the_order_of_sets_is_the_same_in_every_process():
  program = 'print([*{"a", "b", "c", "d", "e"}])'
  assert len({_run(program).output for _ in range(3)}) == 1


# What a program tries, and what becomes of it: a result, and what it prints.
_ATTACKS = {
  'endless loop': ('while True: pass', 'timeout', ''),
  'endless sleep': ('import time\ntime.sleep(1000)', 'timeout', ''),
  'sleep with all descriptors closed': (
    'import os, time\nos.closerange(0, 100)\ntime.sleep(1000)',
    'timeout',
    '',
  ),
  'loop that ignores signals': (
    'import signal\n'
    'for s in range(1, 64):\n'
    '  try: signal.signal(s, signal.SIG_IGN)\n'
    '  except (OSError, ValueError): pass\n'
    'while True: pass',
    'timeout',
    '',
  ),
  'memory': ('x = bytearray(1 << 40)', 'failed', 'MemoryError'),
  'memory, bit by bit': (
    'x = []\nwhile True: x.append(bytearray(1 << 24))',
    'failed',
    'MemoryError',
  ),
  'recursion': ('def f(): f()\nf()', 'failed', 'RecursionError'),
  'fork bomb': ('import os\nwhile True: os.fork()', 'failed', 'Permission'),
  'another program': (
    'import os\nos.execv("/bin/sh", ["sh"])',
    'failed',
    'Permission',
  ),
  'subprocess': (
    'import subprocess\nsubprocess.run(["sh"], close_fds=False)',
    'failed',
    'PermissionError',
  ),
  'threads': (
    'import threading\nthreading.Thread(target=print).start()',
    'failed',
    "can't start new thread",
  ),
  'write a file': ('open("/tmp/found", "w")', 'failed', 'PermissionError'),
  'write in its folder': ('open("found", "w")', 'failed', 'PermissionError'),
  'shorten a file': (
    'import os\nos.open(os.__file__, os.O_RDONLY | os.O_TRUNC)',
    'failed',
    'PermissionError',
  ),
  'make a folder': ('import os\nos.mkdir("found")', 'failed', 'Permission'),
  'remove a file': (
    'import os\nos.remove(os.__file__)',
    'failed',
    'PermissionError',
  ),
  'memory file': ('import os\nos.memfd_create("x")', 'failed', 'Permission'),
  'read a file': ('open("/etc/passwd").read()', 'failed', 'PermissionError'),
  'read its environment': (
    'open("/proc/self/environ").read()',
    'failed',
    'PermissionError',
  ),
  "read its parent's environment": (
    'import os\nopen(f"/proc/{os.getppid()}/environ").read()',
    'failed',
    'PermissionError',
  ),
  "open its parent's memory": (
    'import os\nopen(f"/proc/{os.getppid()}/mem", "rb")',
    'failed',
    'PermissionError',
  ),
  'TCP socket': (
    'import socket\nsocket.create_connection(("127.0.0.1", 80))',
    'failed',
    'PermissionError',
  ),
  'UNIX socket': (
    'import socket\nsocket.socket(socket.AF_UNIX)',
    'failed',
    'PermissionError',
  ),
  'kill its parent': (
    'import os\nos.kill(os.getppid(), 9)',
    'failed',
    'PermissionError',
  ),
  'kill everything': ('import os\nos.kill(-1, 9)', 'failed', 'Permission'),
  'kill its group': ('import os\nos.killpg(0, 9)', 'failed', 'Permission'),
  'limit its parent': (
    'import os, resource\n'
    'resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))',
    'failed',
    'PermissionError',
  ),
  'have its parent signalled': (
    'import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())',
    'failed',
    'PermissionError',
  ),
  'trace its parent': (
    'import ctypes, os\n'
    'libc = ctypes.CDLL(None, use_errno=True)\n'
    'assert libc.ptrace(16, os.getppid(), 0, 0) == 0, ctypes.get_errno()',
    'failed',
    'AssertionError: 1\n',
  ),
  'raise its limits': (
    'import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))',
    'failed',
    'Error',
  ),
  'huge output': ('while True: print("x" * 1000)', 'output', 'xxx'),
  'huge error': ('raise ValueError("x" * 10**6)', 'output', 'xxx'),
  'read its input': ('input()', 'failed', 'EOFError'),
  'sys.exit': ('import sys\nsys.exit(0)', 'failed', 'SystemExit'),
  'os._exit': ('import os\nos._exit(0)', 'failed', ''),
  'abort': ('import os\nos.abort()', 'failed', ''),
  'write on every descriptor': (
    'import os\n'
    'for i in range(3, 32):\n'
    '  try: os.write(i, b"ready\\npassed\\n")\n'
    '  except OSError: pass\n'
    'os._exit(0)',
    'failed',
    '',
  ),
  'say that it was refused': (
    'import os\n'
    'for i in range(3, 32):\n'
    '  try: os.write(i, b"refused")\n'
    '  except OSError: pass\n'
    'os._exit(0)',
    'failed',
    '',
  ),
  'other asserts': (
    'import builtins, sys\n'
    'class AssertionError(Exception): pass\n'
    'builtins.AssertionError = AssertionError\n'
    'builtins.exec = builtins.compile = lambda *args, **kwargs: None\n'
    'sys.excepthook = lambda *args: None',
    'failed',
    'AssertionError',
  ),
  'pass at exit': (
    'import atexit, os, sys\natexit.register(os._exit, 0)\nsys.exit(0)',
    'failed',
    'SystemExit',
  ),
}


@pytest.mark.parametrize('name', _ATTACKS)
def test_an_attack_is_a_failed_example(name):
  program, result, printed = _ATTACKS[name]
  # Tests that no program of these passes.
  seconds = _SHORT_S if result == 'timeout' else _LONG_S
  outcome = _run(program, 'assert False', memory_mb=256, timeout_s=seconds)
  assert outcome.result == result, outcome.output
  assert printed in outcome.output
  assert len(outcome.output) <= 65_536
  # The caller goes on.
  assert not pathlib.Path('/tmp/found').exists()


def test_leaving_in_the_middle_of_the_tests_is_a_failure():
  program = 'import os\ndef f(): os._exit(0)'
  assert _run(program, 'f()').result == 'failed'
  assert _run('def f(): raise SystemExit(0)', 'f()').result == 'failed'


def test_nothing_of_the_caller_is_inherited(monkeypatch, tmp_path):
  monkeypatch.setenv('A_SECRET', 'sesame')
  secret = tmp_path / 'secret'
  secret.write_text('sesame')
  with secret.open() as file:
    os.set_inheritable(file.fileno(), True)
    outcome = _run(
      'import os\n'
      'print(dict(os.environ), os.getcwd())\n'
      'for i in range(32):\n'
      '  try: print(i, os.read(i, 100))\n'
      '  except OSError as e: print(i, e.errno)'
    )
  assert outcome.passed
  assert 'sesame' not in outcome.output
  assert 'A_SECRET' not in outcome.output
  assert os.getcwd() not in outcome.output
  assert '0 b' in outcome.output  # Empty, for it is no terminal.


def test_a_folder_is_made_for_it_and_removed(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  outcome = _run('import os\nprint(os.getcwd())')
  assert outcome.output.startswith(str(tmp_path))
  assert list(tmp_path.iterdir()) == []


def test_nobody_is_left_behind(monkeypatch):
  started = []
  popen = subprocess.Popen

  def start(*args, **kwargs):
    started.append(popen(*args, **kwargs))
    return started[-1]

  monkeypatch.setattr(subprocess, 'Popen', start)
  assert _run('while True: pass', timeout_s=_SHORT_S).result == 'timeout'
  assert _run('while True: print(1)').result == 'output'
  for process in started:
    with pytest.raises(ProcessLookupError):
      os.killpg(process.pid, 0)


@pytest.mark.parametrize(
  ('old', 'new', 'reason'),
  [
    ('access brk', 'access socket brk', 'sockets can be made'),
    ('access brk', 'access kill brk', 'signals can be sent'),
    ('access brk', 'access clone fork brk', 'processes can be made'),
    ('  _forbid_files(libc, readable)\n', '', 'files can be read'),
    ('  _forbid_calls()\n', '', 'processes can be made'),
    ('= 444, 445, 446', '= 9990, 9991, 9992', 'its kernel has no Landlock'),
    ('libseccomp.so.2', 'libmissing.so.2', 'it has no libmissing.so.2'),
    ('import ctypes\n', 'import no_such_module\n', 'no_such_module'),
  ],
)
def test_where_something_cannot_be_forbidden_nothing_is_run(
  monkeypatch, tmp_path, old, new, reason
):
  """What a machine would lack is taken out of the process that confines."""
  text = pathlib.Path(confined.__file__).read_text()
  assert old in text
  (tmp_path / 'confined.py').write_text(text.replace(old, new))
  monkeypatch.setattr(sandbox, '_CONFINED', tmp_path / 'confined.py')
  with pytest.raises(ValueError, match=reason) as raised:
    sandbox.run('raise ValueError("it was run")', '')
  assert 'it was run' not in str(raised.value)
  assert '\n' not in str(raised.value)


def test_other_systems_are_refused(monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'darwin')
  with pytest.raises(ValueError, match='it is darwin, not Linux'):
    sandbox.check()
