"""Launchers as a user runs them, without importing the libraries anew.

One process imports what they import, and forks for each command: it is run as
`python -m` runs it, in a process of its own, with its exit code and its output.
What it imports has computed nothing before the fork, for threads do not survive
that; what is forked may compute.
"""

import atexit
import functools
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

_ROOT = pathlib.Path(__file__).parent.parent
# Seconds that a command may take.
_PATIENCE = 120


@functools.cache
def _server() -> subprocess.Popen:
  options = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
  server = subprocess.Popen([sys.executable, __file__], text=True, **options)
  atexit.register(server.kill)
  return server


def run(module: str, *arguments: str) -> subprocess.CompletedProcess:
  """Runs `python -m module arguments` in the root of the project."""
  server = _server()
  with tempfile.TemporaryDirectory() as folder:
    out, err = (pathlib.Path(folder) / name for name in ('out', 'err'))
    told = dict(module=module, arguments=arguments, out=str(out), err=str(err))
    server.stdin.write(json.dumps(told) + '\n')
    server.stdin.flush()
    code = int(server.stdout.readline())
    return subprocess.CompletedProcess(
      [module, *arguments], code, out.read_text(), err.read_text()
    )


def python(*command: object, **how: Any) -> subprocess.CompletedProcess:
  """Runs Python in a process of its own, in the root of the project."""
  how = dict(capture_output=True, text=True, cwd=_ROOT) | how
  return subprocess.run([sys.executable, *map(str, command)], **how)


def on_devices(count: int) -> dict[str, str]:
  """The environment of a process that counts so many CPU devices."""
  flags = [
    f'--xla_force_host_platform_device_count={count}',
    # Most of the time goes into compiling.
    '--xla_backend_optimization_level=0',
    '--xla_llvm_disable_expensive_passes=true',
  ]
  return os.environ | dict(XLA_FLAGS=' '.join(flags), JAX_PLATFORMS='cpu')


def free_port() -> int:
  """A port of this machine that nobody listens at."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]


def finish(*processes: subprocess.Popen, timeout: int = 900) -> list[str]:
  """Waits for processes; returns what they say, and lets none outlive this."""
  try:
    said = [process.communicate(timeout=timeout) for process in processes]
    return [''.join(filter(None, parts)) for parts in said]
  finally:
    for process in processes:
      process.kill()
      process.wait()


def _child(told: dict[str, Any]) -> None:
  """Runs a command; never returns."""
  for fd, path in ((1, told['out']), (2, told['err'])):
    os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), fd)
  # A child that hangs is a failure with this signal's exit code.
  signal.alarm(_PATIENCE)
  sys.argv = [told['module'], *told['arguments']]
  code = 0
  try:
    runpy.run_module(told['module'], run_name='__main__', alter_sys=True)
  except SystemExit as e:
    code = e.code if isinstance(e.code, int) else int(e.code is not None)
  except BaseException:
    import traceback

    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _serve() -> None:
  """Forks for each line."""
  sys.path[0] = str(_ROOT)
  # No computation: threads would not survive the fork.
  import warnings

  import jax  # noqa: F401
  import ml_collections  # noqa: F401
  import pandas  # noqa: F401

  from cascades.models import gemma_library

  gemma_library.import_gemma()
  # Threads of those libraries have nothing to do for who makes a mistake.
  warnings.simplefilter('ignore', DeprecationWarning)
  for line in sys.stdin:
    told = json.loads(line)
    pid = os.fork()
    if not pid:
      _child(told)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == '__main__':
  _serve()
