"""Who decodes the points of a sweep: this process, or a cluster.

A launcher is made of the sweep's config, its curves, its tasks by name, and a
function that shows the user a line. It has the methods of `worker.Worker`, the
launcher of this process: `facts` and `costs` of its workers, who all have to be
alike; `decode`, which gives points in whatever order they are done; `views`,
`race` and `close`. `usage` is what decoding took, in all. To add one, write a
class with these, and name it in LAUNCHERS.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import ml_collections

from cascades import extras
from cascades.sampler import batching
from experiments import records
from experiments.records import metrics
from experiments.sweeps import plan, worker


class Ray:
  """A Ray cluster, each of whose workers has the pair.

  The field `ray` of a config says where it is (`address`: empty for one on this
  machine, `auto`, or `ray://HOST:PORT`), what a point takes (`cpus`, `gpus`)
  and how often a point whose worker is lost is tried again (`retries`).
  """

  def __init__(
    self,
    config,
    curves: Sequence[plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Finds the cluster, or starts one, and gives it what all points need.

    Args:
      config: The sweep's.
      curves: The curves that its points are on.
      tasks: Its tasks by name, which workers make of the config again.
      say: Shows the user a line.

    Raises:
      ValueError: Ray is not installed, there is no such cluster, or it is too
        small for a point.
    """
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
    # The config may say nothing of it.
    said = _RAY | dict(config.get('ray') or {})
    if not said['address']:
      # As on a laptop's system, Ray then listens to this machine alone.
      os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
      os.environ.setdefault('RAY_AUTH_MODE', 'token')
    try:
      import ray
    except ImportError:
      raise ValueError(extras.missing('launcher', 'ray', 'ray')) from None
    self._ray, self._say, self.usage = ray, say, batching.DecodeStats()
    self._own = not ray.is_initialized()
    if self._own:
      _connect(ray, said['address'])
    try:
      self._slots = _slots(ray.cluster_resources(), said['cpus'], said['gpus'])
    except ValueError:
      self.close()
      raise
    self._remote = ray.remote(_on_worker).options(
      num_cpus=said['cpus'],
      num_gpus=said['gpus'],
      max_retries=said['retries'],
      # What a point's own code raises it would raise again.
      retry_exceptions=False,
    )
    # Once for all points.
    self._pair = ray.put((config.to_dict(), tuple(curves)))
    self._key = records.digest([time.time_ns(), os.getpid()])
    self._facts: dict[str, Any] | None = None

  def _call(self, what: str, *args) -> Any:
    """Asks `_on_worker` for something; gives Ray's reference to it."""
    return self._remote.remote(self._key, self._pair, what, *args)

  def _result(self, ref: Any) -> Any:
    """What a worker gave back to a call.

    Raises:
      ValueError: It could not do it, or it was lost too often.
    """
    errors = self._ray.exceptions
    try:
      facts, result = self._ray.get(ref)
    except errors.RayTaskError as error:
      raise error.cause from None
    except (errors.WorkerCrashedError, errors.NodeDiedError) as error:
      raise ValueError(
        'ray: a worker was lost more often than ray.retries; what is done is'
        f' kept, and the same command goes on ({type(error).__name__}).'
      ) from None
    self._facts = self._facts or facts
    if facts != self._facts:
      odd = sorted(k for k in facts if facts[k] != self._facts[k])
      raise ValueError(
        f'ray: workers differ in {", ".join(odd)}; give them the same.'
      )
    return result

  def facts(self) -> dict[str, Any]:
    """Returns the provenance of the workers."""
    if self._facts is None:
      self._result(self._call('facts'))
    return self._facts

  def costs(self) -> metrics.CostRange:
    """Measures unit costs on a worker."""
    return self._result(self._call('costs'))

  def decode(self, jobs, on_answer, stopped):
    """Yields points and their records in the order of completion."""
    waiting, running = list(reversed(jobs)), {}
    while running or (waiting and not stopped()):
      while waiting and len(running) < self._slots and not stopped():
        point, examples = waiting.pop()
        running[self._call('decode', point, tuple(examples))] = point
      # Not for ever: Ctrl-C is heard between two of these.
      done, _ = self._ray.wait(list(running), timeout=1.0)
      for ref in done:
        point = running.pop(ref)
        found, usage, said = self._result(ref)
        self.usage.add(usage)
        for _ in found:
          on_answer()
        yield point, found
        for line in said:
          self._say(line)

  def views(self, *asked):
    """Computes token probabilities on a worker."""
    return self._result(self._call('views', *asked))

  def race(self, *asked):
    """Times entrants on a worker."""
    return self._result(self._call('race', *asked))

  def close(self) -> None:
    """Stops a cluster that this launcher started."""
    if self._own:
      self._ray.shutdown()


_RAY = {'address': '', 'cpus': 1, 'gpus': 0, 'retries': 3}
# The pair of this process, by the run that it is of: its worker, the facts of
# that, and what it has to say to the user.
_loaded: dict[str, tuple[worker.Worker, dict[str, Any], list[str]]] = {}


def _connect(ray: ModuleType, address: str) -> None:
  """Connects this process to a cluster, or, without an address, starts one.

  Raises:
    ValueError: There is none.
  """
  try:
    ray.init(
      address=address or 'local',
      include_dashboard=None if address else False,
      log_to_driver=False,
      logging_level=logging.ERROR,
      runtime_env={'env_vars': _environment()},
    )
  except (ConnectionError, OSError, RuntimeError, ValueError) as error:
    raise ValueError(
      f'ray: no cluster at {address or "this machine"}'
      f' ({" ".join(str(error).split())}); start one, or give another'
      ' --config.ray.address.'
    ) from None


def _slots(there: Mapping[str, float], cpus: float, gpus: float) -> int:
  """How many points a cluster can decode at a time.

  Args:
    there: What the cluster has, by Ray's names.
    cpus: What a point takes of 'CPU'; 0 for nothing that is counted.
    gpus: What a point takes of 'GPU'; 0 for nothing that is counted.

  Raises:
    ValueError: It cannot decode a single one.
  """
  slots = [
    there.get(name, 0) // asked
    for name, asked in (('CPU', cpus), ('GPU', gpus))
    if asked
  ]
  found = int(min(slots, default=1))
  if found < 1:
    raise ValueError(
      f'ray: a point takes {cpus:g} CPUs and {gpus:g} GPUs,'
      f' and the cluster has {there.get("CPU", 0):g} and'
      f' {there.get("GPU", 0):g}; give a smaller ray.cpus or ray.gpus.'
    )
  return found


def _environment() -> dict[str, str]:
  """What workers on other machines have to be told."""
  names = ('JAX_COMPILATION_CACHE_DIR', 'JAX_PLATFORMS', 'XLA_FLAGS')
  return {name: os.environ[name] for name in names if name in os.environ}


def _on_worker(key: str, pair, what: str, *args) -> tuple[dict, Any]:
  """In a process of the cluster: does something with the pair, loaded once.

  Args:
    key: Names the run, for which the pair is loaded.
    pair: The fields of the sweep's config, and its curves.
    what: 'facts', or a method of `worker.Worker`.
    *args: Of that method; to decode, a point and its examples.

  Returns:
    The worker's facts, and what was asked for: None where that was facts; of a
    point, what came of it, what it took, and what is to be told of it.
  """
  fields, curves = pair
  if key not in _loaded:
    config = ml_collections.ConfigDict(fields)
    # That of another run has no place beside it.
    _loaded.clear()
    said = []
    one = worker.Worker(config, curves, plan.tasks_of(config), said.append)
    _loaded[key] = one, one.facts(), said
  one, facts, said = _loaded[key]
  if what == 'facts':
    return facts, None
  if what != 'decode':
    return facts, getattr(one, what)(*args)
  said.clear()
  one.usage = batching.DecodeStats()
  ((_, made),) = one.decode([args])
  return facts, (made, one.usage, list(said))


LAUNCHERS = {'local': worker.Worker, 'ray': Ray}
