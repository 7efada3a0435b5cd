"""Processes that run one command together, each with some of the devices.

`jax.distributed` joins the processes, whose arrays then span all devices. A
connection from each process to the first one, the leader, does two more things:

  orders   The leader tells the others what to compute next. The others neither
           read nor write the workdir, so that all take the same steps, however
           a sweep was stopped before.
  watch    The connection of a process that ends closes at once. The others then
           end with a sentence. On its own a collective waits for a dead process
           for ever, until JAX aborts after a minute or more without a
           heartbeat.

The address of the leader, and a token that a connection starts with, are in the
key-value store of `jax.distributed`.
"""

import contextlib
import ctypes
import hmac
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from experiments import cli

# Exit code of a process that ends because another one did.
EXIT_CODE = 3
# Seconds that a process waits for the others to start, and to connect.
_JOIN_S, _CONNECT_S = 300, 60
# Seconds after which JAX notices a machine that vanished without closing its
# connections, and seconds that processes which are done wait for the others.
_HEARTBEAT_S, _SHUTDOWN_S = 60, 20
# Seconds in which the watch notices a process whose end a collective reported.
_GRACE_S = 5
# Bytes of the longest message: answers to evaluate token by token.
_MAX_BYTES = 2**26
_STORE_KEY = 'cascades/leader'
# Handlers of SIGABRT, which Python must not free.
_handlers: list[Any] = []


class Place(NamedTuple):
  """The place of a process among all of them; None is left to JAX.

  Attributes:
    coordinator: 'host:port' of process 0.
    count: Number of processes.
    index: Index of this process.
  """

  coordinator: str | None = None
  count: int | None = None
  index: int | None = None


def parse_place(flag: str) -> Place:
  """Reads the value of `--distributed`."""
  if flag == 'auto':
    return Place()
  try:
    coordinator, count, index = flag.split(',')
    count, index = int(count), int(index)
    host, _, port = coordinator.rpartition(':')
    if not host or not 0 < int(port) < 2**16:
      raise ValueError
  except ValueError:
    raise ValueError(
      f'distributed: must be auto or HOST:PORT,PROCESSES,INDEX, got {flag!r}.'
    ) from None
  if not 0 <= index < count:
    raise ValueError(
      'distributed: the index must be at least 0 and below the number of'
      f' processes, got {index} of {count}; give each process its'
      ' own index, from 0.'
    )
  return Place(coordinator, count, index)


class Group:
  """The processes of a command, seen from one of them.

  Attributes:
    index: Index of this process; 0 is the leader.
  """

  def __init__(self, index: int, connections: dict[int, socket.socket]):
    """Watches the connections."""
    self.index = index
    self._sockets, self._is_closing = connections, False
    # A process that closes waits for a watch that is ending it: it says one
    # sentence, its own or that of the watch.
    self._lock = threading.Lock()
    self._received = {peer: queue.Queue() for peer in connections}
    for peer in connections:
      threading.Thread(target=self._watch, args=(peer,), daemon=True).start()

  @property
  def is_leader(self) -> bool:
    """True for the process that owns the workdir and gives orders."""
    return self.index == 0

  def _watch(self, peer: int) -> None:
    """Queues the messages of a process; ends this process with that one."""
    with (
      contextlib.suppress(OSError, ValueError, TypeError, KeyError),
      self._sockets[peer].makefile('rb') as stream,
    ):
      while (line := stream.readline(_MAX_BYTES)).endswith(b'\n'):
        message = json.loads(line)
        if message['order'] == 'end':
          # A leader that is done may close the connection.
          self._is_closing = True
        self._received[peer].put(message)
    self._lose(peer)

  def _lose(self, peer: int) -> None:
    """Ends this process with another one, unless it is closing itself."""
    with self._lock:
      if not self._is_closing:
        _end_with(peer)

  def send(self, order: str, **fields: Any) -> None:
    """Sends a message to all processes at the other ends."""
    line = json.dumps({'order': order, **fields}) + '\n'
    for peer, connection in self._sockets.items():
      try:
        connection.sendall(line.encode())
      except OSError:
        self._lose(peer)

  def receive(self, peer: int = 0) -> dict[str, Any]:
    """Waits for the next message of a process."""
    return self._received[peer].get()

  def end(self, is_stopped: bool) -> None:
    """Tells the others, if this is the leader, that they may end."""
    if self.is_leader:
      # The others may be gone before the next line.
      with self._lock:
        self._is_closing = True
      self.send('end', is_stopped=is_stopped)

  def agree(self, digest: str, subject: str) -> None:
    """Checks that all processes have the same digest of something."""
    if not self.is_leader:
      self.send('digest', digest=digest)
      odd = self.receive()['odd']
    else:
      odd = [x for x in self._sockets if self.receive(x)['digest'] != digest]
      self.send('verdict', odd=odd)
    if odd:
      raise ValueError(
        f'distributed: process {odd[0]} has {subject} that differ from those of'
        ' process 0; start all processes with the same command, files and'
        ' versions.'
      )

  def close(self) -> None:
    """Closes the connections; other processes end unless they were told to."""
    with self._lock:
      self._is_closing = True
    for connection in self._sockets.values():
      with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
      connection.close()


def _end_with(peer: int) -> NoReturn:
  """Ends this process with a sentence, from any thread."""
  _exit_with(
    f'distributed: process {peer} ended before the others; its output says'
    ' why, and the same command resumes the sweep.',
    EXIT_CODE,
  )


@contextlib.contextmanager
def joined(flag: str | None, debug: bool = False) -> Iterator[Group | None]:
  """Joins the processes of a command; must precede other uses of JAX."""
  if flag is None:
    yield None
    return
  import jax

  group = _join(parse_place(flag), debug)
  try:
    yield group
    group.end(is_stopped=False)
  except cli.StoppedError:
    group.end(is_stopped=True)
    raise
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' in str(error):
      raise ValueError(
        f'memory: a device of process {group.index} has too little memory; give'
        ' a smaller --config.batch_size, or more devices for the parameters'
        ' with --config.mesh.'
      ) from None
    # The watch explains an error of a collective whose process has ended.
    time.sleep(_GRACE_S)
    raise
  finally:
    group.close()


@contextlib.contextmanager
def exiting_at_once() -> Iterator[None]:
  """Ends a process that fails in the body without waiting for the others.

  JAX would wait for processes that are gone, and abort.
  """
  try:
    yield
  except SystemExit as error:
    jax = sys.modules.get('jax')
    if error.code and jax and jax.distributed.is_initialized():
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(error.code if isinstance(error.code, int) else 1)
    raise


def _join(place: Place, debug: bool) -> Group:
  """Joins the processes, and connects them."""
  import jax
  from jax._src import distributed

  from cascades.models import sharding

  with contextlib.suppress(AttributeError):
    # Its handler of SIGTERM would keep a process alive.
    jax.config.update('jax_enable_preemption_service', False)
  if not debug:
    _silence_jax()
  name, address = 'this process', 'the first host'
  if place.coordinator:
    name = f'process {place.index} of {place.count}'
    address = place.coordinator
  _on_abort(
    f'distributed: {name} could not join the others at {address} (they did not'
    f' connect within {_JOIN_S} s, or its index is taken); start all processes,'
    ' each with its own index, on hosts that can reach this address.',
    2,
  )
  sharding.initialize(
    place.coordinator,
    place.count,
    place.index,
    initialization_timeout=_JOIN_S,
    heartbeat_timeout_seconds=_HEARTBEAT_S,
    shutdown_timeout_seconds=_SHUTDOWN_S,
  )
  _on_abort(
    'distributed: JAX aborted this process, most likely because another process'
    ' was lost; --debug shows why, and the same command resumes the sweep.',
    EXIT_CODE,
    _GRACE_S,
  )
  state = distributed.global_state
  index, count = state.process_id, state.num_processes
  host = str(state.coordinator_address).rpartition(':')[0].strip('[]')
  if index == 0:
    return Group(0, _accept(state.client, host, count))
  # Ctrl-C in a terminal reaches all processes; the leader handles it.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  return Group(index, {0: _connect(state.client, host, index, count)})


def _exit_with(sentence: str, code: int) -> NoReturn:
  """Ends this process from any thread, with a sentence and an exit code."""
  # A progress bar leaves the cursor within its line.
  start = '\n' if sys.stderr.isatty() else ''
  with contextlib.suppress(OSError):
    os.write(2, f'{start}error: {sentence}\n'.encode())
  # The main thread may wait in a collective, which nothing interrupts.
  os._exit(code)


def _on_abort(sentence: str, code: int, grace_s: float = 0) -> None:
  """Ends this process with a sentence where JAX aborts it.

  JAX aborts if processes do not join, and later if one of them is lost, as soon
  as that is the leader.

  The watch may end the process within `grace_s` seconds before.
  """

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def end(number: int) -> None:
    del number
    time.sleep(grace_s)
    _exit_with(sentence, code)

  _handlers.append(end)
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  # A handler of Python would run in the main thread, which may be waiting.
  libc.signal(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))


def _silence_jax() -> None:
  """Hides the twenty lines that JAX prints before it aborts."""
  with contextlib.suppress(ImportError, AttributeError):
    from jaxlib import utils

    # Above the level of fatal messages, 3.
    utils.absl_set_min_log_level(4)


def _accept(store: Any, host: str, count: int) -> dict[int, socket.socket]:
  """Accepts a connection of each other process."""
  token = secrets.token_hex(16)
  connections: dict[int, socket.socket] = {}
  with _listen(host) as server:
    server.settimeout(_CONNECT_S)
    store.key_value_set(_STORE_KEY, f'{server.getsockname()[1]} {token}')
    while len(connections) < count - 1:
      try:
        connection, _ = server.accept()
        connection.settimeout(_CONNECT_S)
        with connection.makefile('rb') as stream:
          words = stream.readline(2**10).decode().split()
      except TimeoutError:
        missing = min({*range(1, count)} - connections.keys())
        raise ValueError(
          f'distributed: process {missing} cannot connect to {host}; open all'
          ' ports between the hosts.'
        ) from None
      except (OSError, ValueError):
        continue
      if len(words) != 3 or not hmac.compare_digest(words[0], token):
        connection.close()
        continue
      index, expected = int(words[1]), int(words[2])
      if expected != count:
        raise ValueError(
          f'distributed: process {index} expects {expected} processes, but'
          f' process 0 expects {count}; give all processes the same number.'
        )
      connections[index] = _watched(connection)
  return connections


def _listen(host: str) -> socket.socket:
  """Returns a listening socket at a host's address, or else at all."""
  try:
    family = socket.getaddrinfo(host, None)[0][0]
    return socket.create_server((host, 0), family=family)
  except OSError:
    return socket.create_server(('', 0))


def _connect(store: Any, host: str, index: int, count: int) -> socket.socket:
  """Connects to the leader; the arguments are those of `_accept`."""
  try:
    text = store.blocking_key_value_get(_STORE_KEY, 1000 * _CONNECT_S)
    port, token = text.split()
    connection = socket.create_connection((host, int(port)), _CONNECT_S)
    connection.sendall(f'{token} {index} {count}\n'.encode())
  except (OSError, RuntimeError) as error:
    raise ValueError(
      f'distributed: process {index} cannot connect to process 0 on {host}'
      f' ({error}); open all ports between the hosts.'
    ) from None
  return _watched(connection)


def _watched(connection: socket.socket) -> socket.socket:
  """Makes the system notice a peer that vanished, before JAX does."""
  connection.settimeout(None)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in ('IDLE', 15), ('INTVL', 5), ('CNT', 3):
    # macOS has other names.
    if option := getattr(socket, f'TCP_KEEP{name}', None):
      connection.setsockopt(socket.IPPROTO_TCP, option, value)
  return connection
