"""The trackers of one sweep, and the points that they have received."""

import contextlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments import cli
from experiments.records import metrics, unit_costs
from experiments.sweeps import plan, trackers, workdirs

# Columns of the summary that trackers show for each lenience.
_ROW_COLUMNS = (
  'lenience',
  *metrics.summary_columns()[metrics.summary_columns().index('n') :],
)
# Columns of the table of best points.
_BEST_COLUMNS = 'task variant gamma lenience quality relative_latency'.split()


class TrackerSet:
  """The trackers of a sweep; one that fails is reported once and left out."""

  def __init__(
    self,
    names: Sequence[str],
    files: workdirs.Workdir,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Starts the trackers."""
    self._files, self._say = files, say
    self._active: dict[str, trackers.Tracker] = {}
    # By task and curve: the records of each point that was logged.
    self._logged: dict[tuple[str, str], dict[plan.Point, list]] = {}
    folder = files.path / 'trackers'
    for name in dict.fromkeys(names):
      try:
        kind = trackers.TRACKERS[name]
        self._active[name] = kind.start(folder, settings, say)
      except ValueError:
        self.close()
        raise
      except Exception as error:
        self._drop(name, error)

  def _drop(self, name: str, error: Exception) -> None:
    """Closes a tracker that failed, and reports the error."""
    self._say(
      f'trackers: {name} failed ({cli.one_line(error)}) and is turned off; the'
      ' workdir keeps all results, and the same command sends them again.'
    )
    tracker = self._active.pop(name, None)
    if tracker is not None:
      with contextlib.suppress(Exception):
        tracker.close()

  def _for_each(self, call: Callable[[trackers.Tracker], None]) -> None:
    """Calls a function on each tracker, and drops those that fail."""
    for name, tracker in list(self._active.items()):
      try:
        call(tracker)
      except Exception as error:
        self._drop(name, error)

  def update(
    self, points: Sequence[plan.Point], costs: unit_costs.Costs
  ) -> None:
    """Logs the curves with points that are done and were not logged."""
    if not self._active:
      return
    curves: dict[tuple[str, str], list[plan.Point]] = {}
    for point in points:
      curves.setdefault((point.task, point.curve.name), []).append(point)
    for (task, curve), shards in curves.items():
      logged = self._logged.setdefault((task, curve), {})
      unlogged = {
        point: [outcome.record for outcome in outcomes]
        for point in shards
        if point not in logged
        and (outcomes := self._files.read_point(point)) is not None
      }
      if not unlogged:
        continue
      logged |= unlogged
      done = [record for point in shards for record in logged.get(point, [])]
      rows = _rows(metrics.summarize(done, costs))
      is_complete = len(logged) == len(shards)
      if is_complete:
        # The records are not needed any more.
        self._logged[task, curve] = {point: [] for point in shards}
      state = dict(rows=rows, is_complete=is_complete)
      self._for_each(operator.methodcaller('log_curve', task, curve, **state))

  def log_summary(self, summary: pd.DataFrame, best: pd.DataFrame) -> None:
    """Logs a finished sweep, once all points were logged."""
    table = best.filter(_BEST_COLUMNS)
    self._for_each(lambda tracker: tracker.log_summary(summary, table))

  def close(self) -> None:
    """Closes all trackers."""
    while self._active:
      name, tracker = self._active.popitem()
      try:
        tracker.close()
      except Exception as error:
        self._drop(name, error)


def _rows(summary: pd.DataFrame) -> list[dict[str, float]]:
  """Returns the numbers of each row that are not nan."""
  return [
    {name: float(x) for name, x in row.items() if not math.isnan(x)}
    for row in summary[list(_ROW_COLUMNS)].to_dict('records')
  ]
