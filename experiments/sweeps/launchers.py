"""Who decodes the points of a sweep: this process, or a cluster.

A launcher gives what its workers know of themselves, the unit costs, and what
comes of points, in whatever order they are done. To add one, write a class
with what `Launcher` says, and name it in LAUNCHERS.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from cascades import extras
from cascades.sampler import batching
from experiments import records
from experiments.records import metrics
from experiments.sweeps import plan

# A point, and the examples that it is of.
Job = tuple[plan.Point, Sequence]


class Launcher(Protocol):
  """Decodes points.

  It is made of the sweep's config, the curves that its points are on, its tasks
  by name, and a function that shows the user a line.

  Attributes:
    usage: What decoding took, in all.
  """

  usage: batching.Usage

  def facts(self) -> dict[str, Any]:
    """What can change a result and is not said by a config.

    It is the same of all workers, by the names of `worker.Worker.facts`.
    """

  def costs(self) -> metrics.Spread:
    """What one call of each model costs on one of the workers."""

  def decode(
    self,
    jobs: Sequence[Job],
    on_answer: Callable[[], None],
    stopped: Callable[[], bool],
  ) -> Iterator[tuple[plan.Point, list]]:
    """Points as they are done, with what came of them.

    Args:
      jobs: Points that need no other's results, each with its examples.
      on_answer: Is called for each answer, as soon as it is known.
      stopped: Says whether to begin no further point.

    Yields:
      A point and its `worker.Made`: the answers at its first lenience in the
      order of the examples, then those at the next.
    """

  def views(
    self,
    curve: plan.Curve,
    lenience: float,
    answers: Sequence[tuple[str, str, records.Trace]],
  ) -> list[records.View]:
    """Views of answers, with what both models say of every token.

    Args:
      curve: What the answers were decoded with.
      lenience: The point of the curve.
      answers: For each the name of its point, what was asked, and its tokens.
    """

  def race(
    self,
    arms: Sequence[tuple[plan.Curve, float]],
    asked: Mapping[str, Sequence],
  ) -> list[records.Record]:
    """Arms against each other on the clock of one worker.

    Args:
      arms: Curves, each with one of its leniences.
      asked: Examples, by task.
    """

  def close(self) -> None:
    """Gives back what it took."""


class Local:
  """This process, a point at a time."""

  def __init__(
    self,
    config,
    curves: Sequence[plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Loads the pair.

    Args:
      config: The sweep's.
      curves: The curves that its points are on.
      tasks: Its tasks by name.
      say: Shows the user a line.

    Raises:
      ValueError: The pair is absent, does not fit or does not go together.
    """
    from experiments.sweeps import worker

    self._worker = worker.Worker(config, curves, tasks)
    self._tasks, self._say = tasks, say

  @property
  def usage(self) -> batching.Usage:
    return self._worker.usage

  def facts(self) -> dict[str, Any]:
    return self._worker.facts()

  def costs(self) -> metrics.Spread:
    return self._worker.costs()

  def decode(self, jobs, on_answer, stopped):
    for point, examples in jobs:
      if stopped():
        return
      task, before = self._tasks[point.task], self._worker.batch_size
      yield (
        point,
        self._worker.decode(task, point.curve, examples, on_answer),
      )
      _say_if_narrower(self._say, point, before, self._worker.batch_size)

  def views(self, curve, lenience, answers):
    return self._worker.views(curve, lenience, answers)

  def race(self, arms, asked):
    return self._worker.race(arms, asked)

  def close(self) -> None:
    pass


def _say_if_narrower(
  say: Callable[[str], None], point: plan.Point, before: int, after: int
) -> None:
  """Tells that there was no memory for as many rows as were asked for.

  Args:
    say: Shows the user a line.
    point: What was decoded.
    before: Most rows at a time before that.
    after: Most rows at a time since.
  """
  if after < before:
    say(
      f'memory: {before} rows at a time were too many for {point.curve.name};'
      f' going on with {after}.'
    )


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
    try:
      import ray
    except ImportError:
      raise ValueError(extras.missing('launcher', 'ray', 'ray')) from None
    said = _ray_fields(config)
    self._ray, self._say, self.usage = ray, say, batching.Usage()
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
    """Asks a worker for something; `_result` waits for it.

    Args:
      what: 'facts', 'costs', 'views', 'race' or 'decode'.
      *args: What `_on_worker` takes for it.

    Returns:
      Ray's reference to it.
    """
    return self._remote.remote(self._key, self._pair, what, *args)

  def _result(self, ref: Any) -> Any:
    """What a worker gave back.

    Args:
      ref: Ray's reference to it, of `_call`.

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
    if self._facts is None:
      self._result(self._call('facts'))
    return self._facts

  def costs(self) -> metrics.Spread:
    return self._result(self._call('costs'))

  def decode(self, jobs, on_answer, stopped):
    waiting, running = list(reversed(jobs)), {}
    while running or (waiting and not stopped()):
      while waiting and len(running) < self._slots and not stopped():
        point, examples = waiting.pop()
        ref = self._call('decode', point.task, point.curve, tuple(examples))
        running[ref] = point
      # Not for ever: Ctrl-C is heard between two of these.
      done, _ = self._ray.wait(list(running), timeout=1.0)
      for ref in done:
        point = running.pop(ref)
        found, usage, before, after = self._result(ref)
        self.usage.add(usage)
        for _ in found:
          on_answer()
        yield point, found
        _say_if_narrower(self._say, point, before, after)

  def views(self, curve, lenience, answers):
    return self._result(self._call('views', curve, lenience, tuple(answers)))

  def race(self, arms, asked):
    return self._result(self._call('race', tuple(arms), dict(asked)))

  def close(self) -> None:
    if self._own:
      self._ray.shutdown()


_RAY = {'address': '', 'cpus': 1, 'gpus': 0, 'retries': 3}
# The pair of this process, by the run that it is of.
_loaded: dict[str, tuple[Any, dict[str, Any]]] = {}


def _ray_fields(config) -> dict[str, Any]:
  """What a config says of Ray, which may be nothing: every name of `_RAY`."""
  return _RAY | dict(config.get('ray') or {})


def _connect(ray: ModuleType, address: str) -> None:
  """Connects this process to a cluster, or starts one.

  Args:
    ray: The library.
    address: Where the cluster is; empty for one on this machine.

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
    what: 'facts', 'costs', 'views', 'race' or 'decode'.
    *args: For views and races those of `Launcher`; to decode, the name of a
      task, a curve and examples.

  Returns:
    The worker's facts, and what was asked for: None where that was facts, else
    costs, views or records of a race; of a point, what came of it, what it
    took, and most rows at a time before and after it.
  """
  import ml_collections

  from experiments.sweeps import worker

  fields, curves = pair
  config = ml_collections.ConfigDict(fields)
  tasks = plan.tasks_of(config)
  if key not in _loaded:
    # That of another run has no place beside it.
    _loaded.clear()
    one = worker.Worker(config, curves, tasks)
    _loaded[key] = one, one.facts()
  one, facts = _loaded[key]
  if what == 'facts':
    return facts, None
  if what == 'costs':
    return facts, one.costs()
  if what in ('views', 'race'):
    return facts, getattr(one, what)(*args)
  task, curve, examples = args
  before, one.usage = one.batch_size, batching.Usage()
  made = one.decode(tasks[task], curve, examples)
  return facts, (made, one.usage, before, one.batch_size)


LAUNCHERS = {'local': Local, 'ray': Ray}
