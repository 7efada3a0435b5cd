"""Runs programs that nobody has looked at, each in a process of its own.

`run(program, tests)` says whether a program passes its tests. The process,
which `confined.py` describes, has an empty folder, no environment, no input, no
network, no children and no way to write a file, signal a process or read what
is the user's. It may take so much processor time, time, memory and output, and
is killed then. Where the kernel cannot enforce that, nothing is run.

That a program passed is proved by a secret that its process writes after the
last test, so leaving early or printing something is a failure. The proof stops
at what a process can hide from itself: a program that searches its own memory
for the secret finds it, and one that returns things which equal everything
passes. Such a program cheats the score, not the machine.

Only Linux has Landlock and seccomp, which need no privileges; libseccomp, a
system library that Debian's apt and systemd themselves depend on, writes the
filter. Packages that do as much ask for newer kernels than clusters have, or
for root.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time

_CONFINED = pathlib.Path(__file__).with_name('confined.py')
# Python has so long to start and to confine itself, on whatever machine.
_START_S = 60
_OPEN_FILES = 32
# The standard library, what its extensions link to, and what finds these.
_READABLE = (
  sysconfig.get_path('stdlib'),
  sysconfig.get_path('platstdlib'),
  f'{sys.base_prefix}/lib',
  '/lib',
  '/lib64',
  '/usr/lib',
  '/usr/lib64',
  '/etc/ld.so.cache',
  '/dev/null',
)
# No site packages, nothing beside the file, no bytecode written, no buffers.
_FLAGS = ('-S', '-s', '-P', '-B', '-u', '-X', 'utf8')


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a program.

  Attributes:
    result: 'passed'; 'failed' for an exception or an early end; 'timeout' or
      'output' for a program that was stopped for taking too much of it.
    output: What it printed, errors included, up to the limit.
  """

  result: str
  output: str

  @property
  def passed(self) -> bool:
    """Whether every test was run and passed."""
    return self.result == 'passed'


def run(
  program: str,
  tests: str,
  *,
  timeout_s: float = 5.0,
  memory_mb: int = 512,
  output_bytes: int = 65_536,
) -> Outcome:
  """Runs a program and its tests, confined.

  Args:
    program: Python text.
    tests: Python text run after it, which raises unless they pass.
    timeout_s: Seconds, both of the clock and of the processor.
    memory_mb: Address space of the process, 1024 * 1024 bytes each.
    output_bytes: It may print as much.

  Returns:
    The outcome; whatever the program does is one.

  Raises:
    ValueError: Programs cannot be confined here; nothing was run.
  """
  if sys.platform != 'linux':
    raise _refusal(f'it is {sys.platform}, not Linux')
  token = secrets.token_hex()
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    given = stack.enter_context(tempfile.TemporaryFile('w+'))
    fields = {
      'program': program,
      'tests': tests,
      'token': token,
      'readable': [folder, *_READABLE],
      'cpu_s': max(1, round(timeout_s)),
      'memory_bytes': memory_mb << 20,
      'open_files': _OPEN_FILES,
    }
    json.dump(fields, given)
    given.seek(0)
    proof, told = os.pipe()
    stack.callback(os.close, proof)
    try:
      process = subprocess.Popen(
        [sys.executable, *_FLAGS, str(_CONFINED), str(told)],
        cwd=folder,
        # The order of a set must not decide whether an answer is right.
        env={'PYTHONHASHSEED': '0'},
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(told,),
        start_new_session=True,
      )
    finally:
      os.close(told)
    stack.enter_context(process)
    try:
      output, proved, stopped = _listen(process, proof, timeout_s, output_bytes)
    finally:
      # It has not been waited for, so the group is still its own.
      os.killpg(process.pid, signal.SIGKILL)
  status, _, rest = proved.partition(b'\n')
  text = output.decode(errors='replace')
  if status != b'ready':
    said = status.decode(errors='replace').removeprefix('refused ')
    raise _refusal(said or text.strip().replace('\n', ' ') or 'no word of it')
  if rest == token.encode():
    return Outcome('passed', text)
  if not stopped and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
    stopped = 'timeout'
  return Outcome(stopped or 'failed', text)


def _listen(process, proof: int, timeout_s: float, output_bytes: int):
  """Reads until the process has ended, or has had enough.

  Returns:
    What it printed, what it wrote as a proof, and why it must be stopped: ''
    if it need not.
  """
  printed, proved = bytearray(), bytearray()
  deadline, ready = time.monotonic() + _START_S, False
  ended = os.pidfd_open(process.pid)
  with selectors.DefaultSelector() as selector:
    selector.register(process.stdout, selectors.EVENT_READ, printed)
    selector.register(proof, selectors.EVENT_READ, proved)
    # It may close both and go on.
    selector.register(ended, selectors.EVENT_READ)
    try:
      while selector.get_map():
        for key, _ in selector.select(max(0, deadline - time.monotonic())):
          read = b'' if key.fd == ended else os.read(key.fd, 65_536)
          if read:
            key.data.extend(read)
          else:
            selector.unregister(key.fileobj)
        if not ready and proved:
          deadline, ready = time.monotonic() + timeout_s, True
        if len(printed) + len(proved) > output_bytes:
          del printed[output_bytes:]
          return printed, proved, 'output'
        if time.monotonic() >= deadline:
          return printed, proved, 'timeout'
    finally:
      os.close(ended)
  return printed, proved, ''


def _refusal(reason: str) -> ValueError:
  return ValueError(
    f'sandbox: this machine cannot confine what programs do ({reason}); use'
    ' Linux 5.13 or newer with Landlock and libseccomp, or leave out the tasks'
    ' that run code.'
  )


def check() -> None:
  """Runs a program that does nothing.

  Raises:
    ValueError: Programs cannot be confined here.
  """
  run('', '')
