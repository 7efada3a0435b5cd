"""Workers of a sweep in several processes, whose devices share each point.

The leader's worker sends an order before everything that the devices compute
together, and `follow` carries out the orders in the other processes, on the
same points. Only the leader has a workdir.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from experiments import cli, records
from experiments.records import unit_costs
from experiments.sweeps import curve_plan, plan, preflight, worker
from experiments.sweeps.process_group import Group


def check_mesh(shape: tuple[int, int]) -> None:
  """Checks that a mesh has all devices of all processes."""
  count = len(jax.devices())
  if math.prod(shape) != count:
    raise ValueError(
      f'mesh: {shape[0]} x {shape[1]} are {math.prod(shape)} devices, but the'
      f' processes have {count}; give numbers whose product is {count}.'
    )


class LeadingWorker(worker.Worker):
  """The worker of the leader; see `worker.Worker` for its methods."""

  def __init__(self, group: Group, *args: Any):
    """Loads the pair, as the other processes do."""
    super().__init__(*args)
    self._group = group

  def costs(self) -> unit_costs.CostRange:
    """Measures the seconds of one call of each model."""
    self._group.send('costs')
    return super().costs()

  def preview(
    self, examples: Mapping[str, Sequence], measured: unit_costs.Costs
  ) -> Iterator[preflight.Preview]:
    """Yields the facts of the sweep."""
    self._group.send('preview')
    return super().preview(examples, measured)

  def decode(
    self,
    jobs: Sequence[worker.Job],
    on_answer: Callable[[], None] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
  ) -> Iterator[tuple[plan.Point, list[records.Outcome]]]:
    """Decodes points in order; yields each with its outcomes."""
    for job in jobs:
      if is_stopping():
        return
      self._group.send('decode', point=job.point.name)
      yield from super().decode([job], on_answer)

  def views(
    self,
    curve: curve_plan.Curve,
    lenience: float,
    requests: Sequence[worker.ViewRequest],
  ) -> list[records.View]:
    """Evaluates each token of a few answers of a curve."""
    self._group.send(
      'views',
      curve=self._curves.index(curve),
      lenience=lenience,
      answers=[[x.point, records.dumps(x.trace)] for x in requests],
    )
    return super().views(curve, lenience, requests)

  def race(
    self,
    entrants: Sequence[worker.Entrant],
    examples: Mapping[str, Sequence],
    turns: int = 3,
  ) -> list[records.Record]:
    """Times entrants against each other, one prompt at a time."""
    self._group.send(
      'race',
      entrants=[[self._curves.index(x), lenience] for x, lenience in entrants],
      count=max(map(len, examples.values())),
    )
    return super().race(entrants, examples, turns)


def follow(
  group: Group,
  follower: worker.Worker,
  curves: Sequence[curve_plan.Curve],
  points: Sequence[plan.Point],
  examples: Mapping[str, Sequence],
) -> None:
  """Carries out the leader's orders until it is done."""
  points_by_name = {point.name: point for point in points}

  def shard(point: plan.Point) -> Sequence:
    return examples[point.task][point.first : point.last]

  while (order := group.receive())['order'] != 'end':
    match order['order']:
      case 'costs':
        follower.costs()
      case 'preview':
        # Costs have no effect on what is computed.
        costs = unit_costs.Costs(
          verifier_token_s=1.0, drafter_token_s=1.0, verify_s={}
        )
        list(follower.preview(examples, costs))
      case 'decode':
        point = points_by_name[order['point']]
        list(follower.decode([worker.Job(point, shard(point))]))
      case 'views':
        requests = []
        for name, line in order['answers']:
          trace = records.loads(line, records.Trace)
          prompts = {x.id: x.prompt for x in shard(points_by_name[name])}
          requests.append(worker.ViewRequest(name, prompts[trace.id], trace))
        follower.views(curves[order['curve']], order['lenience'], requests)
      case 'race':
        follower.race(
          [worker.Entrant(curves[i], x) for i, x in order['entrants']],
          {name: x[: order['count']] for name, x in examples.items()},
        )
  if order['is_stopped']:
    raise cli.StoppedError('stopped, because process 0 was stopped.')
