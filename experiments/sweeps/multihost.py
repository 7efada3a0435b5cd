"""One sweep in several processes, whose devices decode each point together.

All run the same command and make the same calls. Process 0 has the workdir, and
writes its calls into the store of `jax.distributed` for the others to read.
"""

import contextlib
import inspect
import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import distributed

from experiments import cli

_WAIT_MS, _numbers = 10**9, itertools.count()


@contextlib.contextmanager
def joined(place: str) -> Iterator[int]:
  """Joins the processes before JAX is used; yields the index of this one."""
  if place != 'auto' and not re.fullmatch(r'.+:\d+,\d+,\d+', place):
    form = 'auto or HOST:PORT,PROCESSES,INDEX'
    raise ValueError(f'distributed: must be {form}, got {place!r}.')
  host, *numbers = (None,) if place == 'auto' else place.split(',')
  # JAX's handler of SIGTERM would keep a process alive.
  jax.config.update('jax_enable_preemption_service', False)
  # A lost process ends the others after this time; older JAX has another one.
  names = inspect.signature(jax.distributed.initialize).parameters
  timeouts = {k: 30 for k in names if k == 'heartbeat_timeout_seconds'}
  try:
    jax.distributed.initialize(host, *map(int, numbers), **timeouts)
  except (ValueError, RuntimeError) as error:
    raise ValueError(
      f'distributed: {place} cannot be joined ({cli.one_line(error)}); give'
      ' auto only on clusters that JAX detects.'
    ) from None
  # A process that fails does not wait for the others, as JAX would.
  cli.exits.append(os._exit)
  if index := distributed.global_state.process_id:
    # Ctrl-C in a terminal reaches all processes; process 0 handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    yield index
  except jax.errors.JaxRuntimeError as error:
    reason = f'lost the others or lacks memory ({cli.one_line(error)})'
    raise ValueError(f'distributed: process {index} {reason}.') from None
  cli.exits.pop()


def share(*call: object, index: int = 0) -> list:
  """Returns the call of one process, which it writes, in all processes."""
  client: Any = distributed.global_state.client
  key = f'cascades/{next(_numbers)}'
  if distributed.global_state.process_id == index:
    client.key_value_set(key, json.dumps(call))
  return json.loads(client.blocking_key_value_get(key, _WAIT_MS))


def is_same(digest: str) -> bool:
  """Returns True if all processes have the same digest."""
  count = distributed.global_state.num_processes
  return [share(digest, index=i) for i in range(count)] == [[digest]] * count
