"""Who decodes the points of a sweep: this process, or a cluster.

A launcher gives what its workers know of themselves, the unit costs, and what
comes of points, in whatever order they are done. To add one, write a class
with `facts`, `costs` and `decode`, and name it in LAUNCHERS.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from cascades import batching, metrics, records
from experiments import plan

# A point, and the examples that it is of.
Job = tuple[plan.Point, Sequence]


class Launcher(Protocol):
  """Decodes points.

  Attributes:
    usage: What that took, in all.
  """

  usage: batching.Usage

  def facts(self) -> dict[str, Any]:
    """As `worker.Worker.facts`; the same of all of its workers."""

  def costs(self) -> metrics.Costs:
    """As `worker.Worker.costs`, of one of them."""

  def decode(
    self,
    jobs: Sequence[Job],
    on_answer: Callable[[], None],
    stopped: Callable[[], bool],
  ) -> Iterator[tuple[plan.Point, list]]:
    """Points as they are done, with what came of them.

    Args:
      jobs: Points that need no other's results.
      on_answer: Is called for each answer, as soon as it is known.
      stopped: Whether to begin no further point.
    """

  def views(
    self,
    curve: plan.Curve,
    lenience: float,
    answers: Sequence[tuple[str, str, records.Trace]],
  ) -> list[records.View]:
    """As `worker.Worker.views`, of one of them."""


class Local:
  """This process, a point at a time."""

  def __init__(
    self,
    config,
    curves: Sequence[plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    from experiments import worker

    longest = max(task.max_new_tokens for task in tasks.values())
    self._worker = worker.Worker(config, curves, longest)
    self._tasks, self._say = tasks, say

  @property
  def usage(self) -> batching.Usage:
    return self._worker.usage

  def facts(self) -> dict[str, Any]:
    return self._worker.facts()

  def costs(self) -> metrics.Costs:
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
      after = self._worker.batch_size
      if after < before:
        self._say(
          f'memory: {before} rows at a time were too many for'
          f' {point.curve.name}; going on with {after}.'
        )

  def views(self, curve, lenience, answers):
    return self._worker.views(curve, lenience, answers)


LAUNCHERS = {'local': Local}
