"""The Ray launcher: workers on a cluster, each of which loads the pair."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import ml_collections

from cascades import arguments
from cascades.sampler import batching
from experiments import cli, records
from experiments.sweeps import curve_plan, plan, worker


class RayCluster:
  """A Ray cluster whose workers each load the pair.

  The field `ray` of a config holds the address of the cluster (`address`: empty
  for one on this machine, `auto`, or `ray://HOST:PORT`), the resources of a
  point (`cpus`, `gpus`) and the number of times that a point whose worker is
  lost is tried again (`retries`). Other methods are those of `worker.Worker`,
  called on one worker.

  Attributes:
    usage: Time and rows that decoding took so far, over all workers.
  """

  def __init__(
    self,
    config: Any,
    curves: Sequence[curve_plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Connects to the cluster, or starts one, and sends it the config."""
    del tasks
    # The config may lack the field.
    options = _DEFAULTS | dict(config.get('ray') or {})
    self._ray, self._say = _connect(options['address']), say
    self._slots = _count_slots(self._ray.cluster_resources(), options)
    self.usage = batching.DecodeStats()
    self._remote = self._ray.remote(_on_worker).options(
      num_cpus=options['cpus'],
      num_gpus=options['gpus'],
      max_retries=options['retries'],
      # Only lost workers are worth a retry: an error of the code recurs.
      retry_exceptions=False,
    )
    # The config is sent once, and not with each point.
    dumped = self._ray.cloudpickle.dumps((config.to_dict(), tuple(curves)))
    self._pair = self._ray.put(dumped)
    # Workers have another working folder.
    self._imports = [
      os.path.abspath(x) if x.endswith('.py') else x for x in cli.imports()
    ]
    self._key = records.digest([time.time_ns(), os.getpid()])
    self._facts: dict[str, Any] | None = None

  def __getattr__(self, method: str) -> Callable[..., Any]:
    """Returns a method that is called on one worker of the cluster."""
    return lambda *args: self._result(self._call(method, *args))

  def _call(self, method: str, *arguments: Any) -> Any:
    call = self._ray.cloudpickle.dumps(arguments)
    return self._remote.remote(
      self._key, self._imports, self._pair, method, call
    )

  def _result(self, ref: Any) -> Any:
    errors = self._ray.exceptions
    try:
      facts, result = self._ray.get(ref)
    except errors.RayTaskError as error:
      raise error.cause from None
    except (errors.WorkerCrashedError, errors.NodeDiedError) as error:
      raise ValueError(
        'ray: a worker was lost more often than ray.retries'
        f' ({type(error).__name__}); the workdir keeps the points that are'
        ' done, and the same command resumes the sweep.'
      ) from None
    self._facts = self._facts or facts
    if facts != self._facts:
      odd = ', '.join(k for k in facts if facts[k] != self._facts[k])
      raise ValueError(f'ray: workers differ in {odd}; give all the same.')
    return result

  def decode(
    self,
    jobs: Sequence[worker.Job],
    on_answer: Callable[[], None],
    is_stopping: Callable[[], bool],
  ) -> Iterator[tuple[plan.Point, list[records.Outcome]]]:
    """Yields each point with its outcomes when it is decoded, in any order."""
    waiting, running = list(reversed(jobs)), {}
    while running or (waiting and not is_stopping()):
      while waiting and len(running) < self._slots and not is_stopping():
        point, examples = waiting.pop()
        job = worker.Job(point, tuple(examples))
        running[self._call('decode', job)] = point
      # A timeout, so that Ctrl-C is noticed between two calls.
      done, _ = self._ray.wait(list(running), timeout=1.0)
      for ref in done:
        outcomes, usage, messages = self._result(ref)
        self.usage.add(usage)
        for _ in outcomes:
          on_answer()
        yield running.pop(ref), outcomes
        for message in messages:
          self._say(message)


_DEFAULTS = {'address': '', 'cpus': 1, 'gpus': 0, 'retries': 3}
# In a worker process, by the key of the run: the worker, its facts, and lines
# for the user.
_loaded: dict[str, tuple[worker.Worker, dict[str, Any], list[str]]] = {}
_imported: set[str] = set()


def _connect(address: str) -> ModuleType:
  """Returns Ray, connected to a cluster, or to a new one without address."""
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  if not address:
    # Ray then accepts connections from this machine only.
    os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
  try:
    import ray
  except ImportError:
    raise ValueError(arguments.missing('launcher', 'ray', 'ray')) from None
  try:
    if not ray.is_initialized():
      ray.init(
        address=address or 'local',
        include_dashboard=None if address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={'env_vars': worker_environment()},
      )
  except (ConnectionError, OSError, RuntimeError, ValueError) as error:
    raise ValueError(
      f'ray: cannot use a cluster at {address or "this machine"}'
      f' ({cli.one_line(error)}); start one, or give another'
      ' --config.ray.address.'
    ) from None
  return ray


def _count_slots(
  resources: Mapping[str, float], options: Mapping[str, Any]
) -> int:
  """Returns the number of points that a cluster can decode at a time."""
  needed = {'CPU': options['cpus'], 'GPU': options['gpus']}
  slots = [resources.get(x, 0) // count for x, count in needed.items() if count]
  if (count := int(min(slots, default=1))) < 1:
    raise ValueError(
      f'ray: a point needs {needed["CPU"]:g} CPUs and {needed["GPU"]:g} GPUs,'
      f' but the cluster has {resources.get("CPU", 0):g} CPUs and'
      f' {resources.get("GPU", 0):g} GPUs; give a smaller ray.cpus or ray.gpus.'
    )
  return count


def worker_environment() -> dict[str, str]:
  """Returns the environment variables that workers on other machines need."""
  names = ('JAX_COMPILATION_CACHE_DIR', 'JAX_PLATFORMS', 'XLA_FLAGS')
  return {name: os.environ[name] for name in names if name in os.environ}


def _on_worker(
  key: str, imports: list[str], pair: bytes, method: str, call: bytes
) -> tuple[dict[str, Any], Any]:
  """Calls a method of a worker, which is loaded once for a run's key."""
  import ray

  if key not in _loaded:
    for module in imports:
      if module not in _imported:
        cli.import_module(module)
        _imported.add(module)
    fields, curves = ray.cloudpickle.loads(pair)
    config, messages = ml_collections.ConfigDict(fields), []
    # A process holds the pair of one run only.
    _loaded.clear()
    tasks = plan.configured_tasks(config)
    loaded = worker.Worker(config, curves, tasks, messages.append)
    _loaded[key] = loaded, loaded.facts(), messages
  loaded, facts, messages = _loaded[key]
  if method == 'facts':
    return facts, facts
  arguments = ray.cloudpickle.loads(call)
  if method != 'decode':
    result = getattr(loaded, method)(*arguments)
    return facts, list(result) if method == 'preview' else result
  messages.clear()
  loaded.usage = batching.DecodeStats()
  ((_, outcomes),) = loaded.decode(arguments)
  return facts, (outcomes, loaded.usage, list(messages))
