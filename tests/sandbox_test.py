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
  # Leaving in the middle of the tests is a failure.
  leaving = 'import os\ndef f(): os._exit(0)'
  for program in (leaving, 'def f(): raise SystemExit(0)'):
    assert _run(program, 'f()').result == 'failed'


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


def _writing(data):
  """A program that writes wherever it can, and leaves."""
  return (
    f'import os\nfor i in range(3, 32):\n  try: os.write(i, {data})\n'
    '  except OSError: pass\nos._exit(0)'
  )


# What programs try, by what becomes of them: a result, and what is printed.
_ATTACKS = {
  ('failed', 'MemoryError'): {
    'memory': 'x = bytearray(1 << 40)',
    'memory, bit by bit': 'x = []\nwhile True: x.append(bytearray(1 << 24))',
  },
  ('failed', 'RecursionError'): {'recursion': 'def f(): f()\nf()'},
  ('failed', 'PermissionError'): {
    'fork bomb': 'import os\nwhile True: os.fork()',
    'another program': 'import os; os.execv("/bin/sh", ["sh"])',
    'subprocess': 'import subprocess; subprocess.run(["sh"], close_fds=False)',
    'write a file': 'open("/tmp/found", "w")',
    'write in its folder': 'open("found", "w")',
    'shorten a file': (
      'import os; os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)'
    ),
    'make a folder': 'import os; os.mkdir("found")',
    'remove a file': 'import os; os.remove(os.__file__)',
    'memory file': 'import os; os.memfd_create("x")',
    'read a file': 'open("/etc/passwd").read()',
    'read its environment': 'open("/proc/self/environ").read()',
    "read its parent's environment": (
      'import os; open(f"/proc/{os.getppid()}/environ").read()'
    ),
    "open its parent's memory": (
      'import os; open(f"/proc/{os.getppid()}/mem", "rb")'
    ),
    'TCP socket': 'import socket; socket.create_connection(("127.0.0.1", 80))',
    'UNIX socket': 'import socket; socket.socket(socket.AF_UNIX)',
    'kill its parent': 'import os; os.kill(os.getppid(), 9)',
    'kill everything': 'import os; os.kill(-1, 9)',
    'kill its group': 'import os; os.killpg(0, 9)',
    'limit its parent': (
      'import os, resource\n'
      'resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))'
    ),
    'have its parent signalled': (
      'import fcntl, os; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())'
    ),
  },
  ('failed', "can't start new thread"): {
    'threads': 'import threading; threading.Thread(target=print).start()',
  },
  ('failed', 'AssertionError: 1\n'): {
    'trace its parent': (
      'import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n'
      'assert libc.ptrace(16, os.getppid(), 0, 0) == 0, ctypes.get_errno()'
    ),
  },
  ('failed', 'Error'): {
    'raise its limits': (
      'import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))'
    ),
  },
  ('failed', 'EOFError'): {'read its input': 'input()'},
  ('failed', 'SystemExit'): {
    'sys.exit': 'import sys; sys.exit(0)',
    'pass at exit': (
      'import atexit, os, sys; atexit.register(os._exit, 0); sys.exit(0)'
    ),
  },
  ('failed', ''): {
    'os._exit': 'import os; os._exit(0)',
    'abort': 'import os; os.abort()',
    'write on every descriptor': _writing(b'ready\npassed\n'),
    'say that it was refused': _writing(b'refused'),
  },
  ('failed', 'AssertionError'): {
    'other asserts': (
      'import builtins, sys\n'
      'class AssertionError(Exception): pass\n'
      'builtins.AssertionError = AssertionError\n'
      'builtins.exec = builtins.compile = lambda *args, **kwargs: None\n'
      'sys.excepthook = lambda *args: None'
    ),
  },
  ('timeout', ''): {
    'endless loop': 'while True: pass',
    'endless sleep': 'import time; time.sleep(1000)',
    'sleep with all descriptors closed': (
      'import os, time; os.closerange(0, 100); time.sleep(1000)'
    ),
    'loop that ignores signals': (
      'import signal\n'
      'for s in range(1, 64):\n'
      '  try: signal.signal(s, signal.SIG_IGN)\n'
      '  except (OSError, ValueError): pass\n'
      'while True: pass'
    ),
  },
  ('output', 'xxx'): {
    'huge output': 'while True: print("x" * 1000)',
    'huge error': 'raise ValueError("x" * 10**6)',
  },
}


@pytest.mark.parametrize(
  ('program', 'result', 'printed'),
  [
    pytest.param(program, *outcome, id=name)
    for outcome, programs in _ATTACKS.items()
    for name, program in programs.items()
  ],
)
def test_an_attack_is_a_failed_example(program, result, printed):
  # Tests that no program of these passes.
  seconds = _SHORT_S if result == 'timeout' else _LONG_S
  outcome = _run(program, 'assert False', memory_mb=256, timeout_s=seconds)
  assert outcome.result == result, outcome.output
  assert printed in outcome.output
  assert len(outcome.output) <= 65_536
  # The caller goes on.
  assert not pathlib.Path('/tmp/found').exists()


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
  assert _run('import os\nprint(os.getcwd())').output.startswith(str(tmp_path))
  assert not list(tmp_path.iterdir())


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
  """Removes a kernel feature from the process that confines."""
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
