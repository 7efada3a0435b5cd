"""The loosest lenience that loses little quality, with a guarantee.

Learn-then-test (Angelopoulos et al. 2021, arXiv 2110.01052): for each lenience
the hypothesis "more than `risk` of the quality is lost against the verifier" is
tested on n examples, from the strictest lenience to the loosest, until the
first hypothesis that is not rejected. Such a fixed sequence needs no further
correction for the number of leniences: with probability at least 1 - delta over
the examples, the last rejected lenience loses at most `risk`. The guarantee
holds for any distribution that the examples were drawn from. They are tested in
a random order: those of a file may be sorted by difficulty, and those of two
tasks follow each other.

The loss of an example is the verifier's quality less the method's, both in
[0, 1], and is thus in [-1, 1]. The test, `stats.p_value`, bets against the
hypothesis (Waudby-Smith and Ramdas 2020, arXiv 2010.09686, section 4).
"""

import bisect
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, mixture, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import ACROSS, GROUP, Points, is_corpus
from experiments.records.stats import p_value


@functools.cache
def needed(risk: float, delta: float) -> int:
  """Returns the fewest examples for a guarantee, if no example has a loss."""

  def is_rejected(n: int) -> bool:
    return p_value(np.zeros(n), risk, delta) <= delta

  high = next(n for i in itertools.count() if is_rejected(n := 2**i))
  return bisect.bisect_left(range(high + 1), True, high // 2, key=is_rejected)


def loosest(losses: np.ndarray, risk: float, delta: float) -> np.ndarray:
  """Counts the leniences, from the strictest on, that lose at most `risk`."""
  is_rejected = p_value(losses, risk, delta) <= delta
  return np.cumprod(is_rejected, -1).sum(-1)


class _Curve(NamedTuple):
  """The points of one curve of one task, from strict on."""

  table: pd.DataFrame
  losses: np.ndarray


_COLUMNS = (
  'task temperature run batch_size variant gamma lenience strict lost latency p'
  ' found tried examples needed'
).split()


def control(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Selects the loosest lenience of each curve with a guaranteed loss.

  The guarantee holds for one curve that was chosen beforehand, and not for the
  best of all curves.
  """
  losses, frame = _losses(points)
  frame = frame[~frame.method.isin(reference_points.BASELINES) & ~frame.oracle]
  frame = comparisons.at_common_gamma(frame)
  task_count, rows = points.table.task.nunique(), []
  for key, curves in frame.groupby(ACROSS, sort=False):
    tasks: dict[str, _Curve] = {}
    for task, curve in curves.groupby('task', sort=False):
      curve = _from_strict(curve)
      lost = np.stack([losses[i] for i in curve.index])
      tasks[task] = _Curve(curve, lost[:, np.isfinite(lost).all(0)])
    if len(tasks) == task_count > 1:
      tasks |= _all_tasks(tasks)
    for task, curve in tasks.items():
      keys = dict(zip(ACROSS, key, strict=True)) | {'task': task}
      rows.append(keys | _controlled(curve, config))
  return pd.DataFrame(rows, columns=_COLUMNS)


def _losses(points: Points) -> tuple[dict[int, np.ndarray], pd.DataFrame]:
  """Returns the losses of the examples of each point, and the points.

  Points are left out if their task has a corpus metric, or if the verifier
  alone was not run on the task.
  """
  losses = {}
  for (task, _), part in points.table.groupby(GROUP, sort=False):
    reference = comparisons.references(part)
    if is_corpus(task) or (reference < 0).any():
      continue
    quality = comparisons.matrices(points, part.index)['quality']
    if not np.isfinite(quality).any():
      continue
    lost = quality[:, reference] - quality
    losses |= dict(zip(part.index, lost.T, strict=True))
  frame = comparisons.rates(points)
  return losses, frame[frame.index.isin(losses)]


def _from_strict(curve: pd.DataFrame) -> pd.DataFrame:
  """Sorts a curve from strict to drafter-only."""
  strict = reference_points.strict_lenience(curve.method.iloc[0])
  # For some methods the largest lenience is strict.
  ascending = not strict > curve.lenience.min()
  return curve.sort_values('lenience', ascending=ascending, kind='stable')


def _all_tasks(tasks: Mapping[str, _Curve]) -> dict[str, _Curve]:
  """Joins all tasks into one, if they were run at the same leniences."""
  curves = [curve.table for curve in tasks.values()]
  points = [list(zip(c.lenience, c.gamma, strict=True)) for c in curves]
  if any(of_task != points[0] for of_task in points):
    return {}
  # Time per token over all tasks.
  tokens = sum(c.mean_output_tokens.to_numpy() * c.n.to_numpy() for c in curves)
  time = sum(
    c.latency.to_numpy() * c.mean_output_tokens.to_numpy() * c.n.to_numpy()
    for c in curves
  )
  losses = np.concatenate([curve.losses for curve in tasks.values()], 1)
  table = curves[0].assign(latency=time / tokens)
  return {mixture.ALL: _Curve(table, losses)}


def _controlled(curve: _Curve, config: AnalysisConfig) -> dict[str, Any]:
  """Returns the row of `control` for one curve of one task."""
  table, losses = curve
  # A strict point loses nothing in expectation, whatever the samples are.
  first = int(table.strict.sum())
  count = int(loosest(losses[first:], config.risk, config.delta))
  index = max(0, first + count - 1)
  row = table.iloc[index]
  return {
    'gamma': row.gamma,
    'lenience': row.lenience,
    'strict': bool(row.strict),
    'lost': losses[index].mean() if losses.size else math.nan,
    'latency': row.latency,
    'p': float(p_value(losses[index], config.risk, config.delta)),
    'found': count,
    'tried': len(table) - first,
    'examples': losses.shape[1],
    'needed': needed(config.risk, config.delta),
  }
