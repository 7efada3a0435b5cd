"""Runs untrusted programs, each in a confined process.

`run(program, tests)` reports if a program passes its tests. The process, which
`confined.py` describes, has an empty folder, no environment, no input, no
network and no children, and cannot write a file, signal a process or read files
of the user. Processor time, time, memory and output are limited. Nothing runs
on a kernel that cannot enforce all of this.

A passed program is proved by a secret that its process writes after the last
test, so leaving early or printing something is a failure. The proof ends at
what a process can hide from itself: a program that searches its own memory for
the secret finds it, and a program that returns objects which equal everything
passes. Such programs cheat the score, not the machine.

Landlock and seccomp, which need no privileges, exist on Linux only; libseccomp,
a system library that Debian's apt and systemd depend on, writes the filter.
Packages with the same guarantees need newer kernels than clusters have, or
root.
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
# Seconds in which Python must start and confine itself, on any machine.
_START_S = 60
_OPEN_FILES = 32
# The standard library, the libraries of its extensions, and their cache.
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
  """The result of a program and its tests.

  Attributes:
    result: 'passed'; 'failed' for an exception or an early end; 'timeout' or
      'output' for a program that exceeded that limit.
    output: Printed text, errors included, up to the limit.
  """

  result: str
  output: str

  @property
  def passed(self) -> bool:
    """True if every test ran and passed."""
    return self.result == 'passed'


def run(
  program: str,
  tests: str,
  *,
  timeout_s: float = 5.0,
  memory_mb: int = 512,
  output_bytes: int = 65_536,
) -> Outcome:
  """Runs a program and its tests in a confined process."""
  if sys.platform != 'linux':
    raise _refusal(f'it is {sys.platform}, not Linux')
  token = secrets.token_hex()
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    stdin = stack.enter_context(tempfile.TemporaryFile('w+'))
    fields = {
      'program': program,
      'tests': tests,
      'token': token,
      'readable': [folder, *_READABLE],
      'cpu_s': max(1, round(timeout_s)),
      'memory_bytes': memory_mb << 20,
      'open_files': _OPEN_FILES,
    }
    json.dump(fields, stdin)
    stdin.seek(0)
    proof, proof_writer = os.pipe()
    stack.callback(os.close, proof)
    try:
      process = subprocess.Popen(
        [sys.executable, *_FLAGS, str(_CONFINED), str(proof_writer)],
        cwd=folder,
        # The order of a set must not decide whether an answer is right.
        env={'PYTHONHASHSEED': '0'},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(proof_writer,),
        start_new_session=True,
      )
    finally:
      os.close(proof_writer)
    stack.enter_context(process)
    try:
      output, proved, limit = _listen(process, proof, timeout_s, output_bytes)
    finally:
      # The process is not reaped yet, so the group id is still its own.
      os.killpg(process.pid, signal.SIGKILL)
  status, _, rest = proved.partition(b'\n')
  text = output.decode(errors='replace')
  if status != b'ready':
    reason = status.decode(errors='replace').removeprefix('refused ')
    raise _refusal(reason or text.strip().replace('\n', ' ') or 'no message')
  if rest == token.encode():
    return Outcome('passed', text)
  if not limit and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
    limit = 'timeout'
  return Outcome(limit or 'failed', text)


def _listen(process, proof: int, timeout_s: float, output_bytes: int):
  """Reads until the process ends, or exceeds a limit."""
  printed, proved = bytearray(), bytearray()
  deadline, ready = time.monotonic() + _START_S, False
  ended = os.pidfd_open(process.pid)
  with selectors.DefaultSelector() as selector:
    selector.register(process.stdout, selectors.EVENT_READ, printed)
    selector.register(proof, selectors.EVENT_READ, proved)
    # The process may close both pipes and continue.
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
  """Makes the error of a machine that cannot confine programs."""
  return ValueError(
    f'sandbox: this machine cannot confine programs ({reason}); use Linux 5.13'
    ' or newer with Landlock and libseccomp, or leave out the tasks that run'
    ' code.'
  )


def check() -> None:
  """Checks that this machine can confine programs."""
  run('', '')
