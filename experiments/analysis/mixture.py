"""Scores over all tasks together, against both models alone.

If the drafter knows one task better than the verifier does, no model alone is
best on every task, and a rule that follows the surer model can be better than
both. Tasks count equally, each as a share of its best score.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.comparisons import with_ends
from experiments.analysis.runs import ACROSS, RUN, Points, is_corpus
from experiments.records import stats

# Name of all tasks together, in the column of the task.
ALL = 'all tasks'
_POINT = [*ACROSS, 'lenience', 'gamma']
# The baseline of each column of gains.
_MODELS = {
  'over_verifier': reference_points.VERIFIER,
  'over_drafter': reference_points.DRAFTER,
}


class _TaskPoints(NamedTuple):
  """The points of one task, and their answers.

  Attributes:
    table: A row per point, by key: variant, lenience and gamma.
    answers: Columns of the answers, as `comparisons.matrices` makes them.
  """

  table: pd.DataFrame
  answers: dict[str, np.ndarray]


def mix(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Scores the points of each run over all of its tasks.

  Args:
    points: Points and answers. Tasks with a corpus metric, and tasks without
      any quality, are left out.
    config: Bootstrap settings.

  Returns:
    A row per curve, lenience and gamma that every task has, with the models
    alone: task (`ALL`, or the only one), method, oracle, quality (mean over
    tasks, as a share), latency (modelled, per token of all tasks), and
    over_verifier and over_drafter (gain of quality). Intervals are over the
    examples, those of gains paired. over_drafter is nan if the drafter alone
    was not run. A run has no rows if a task has fewer than two examples, or if
    the verifier alone was not run.
  """
  parts = [
    mixed
    for _, table in points.table.groupby(RUN, sort=False)
    if (mixed := _mix_run(points, table, config)) is not None
  ]
  columns = ['task', *_POINT, 'method', 'oracle', 'law']
  for name in ('quality', 'latency', *_MODELS):
    columns += with_ends(name)
  if not parts:
    return pd.DataFrame(columns=columns)
  return pd.concat(parts, ignore_index=True)[columns]


def multi_task_points(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the points of runs with several tasks and both models alone.

  Args:
    frame: Points over all tasks, as `mix` makes them.
  """
  keys = [frame[name] for name in RUN]
  is_drafter = frame.method.eq(reference_points.DRAFTER)
  has_drafter = is_drafter.groupby(keys).transform('any')
  return frame[has_drafter & (frame.task == ALL)]


def _mix_run(
  points: Points, table: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame | None:
  """Scores the points of one run over all of its tasks.

  Args:
    points: Points and answers of all runs.
    table: The rows of `points.table` that are of the run.
    config: Bootstrap settings.

  Returns:
    A row per point that every task has; None if nothing can be compared.
  """
  tasks = {}
  for task, part in table.groupby('task', sort=False):
    # As text, because nan differs from itself and cannot be a key.
    key = zip(part.variant, map(str, part.lenience), part.gamma, strict=True)
    part = part.assign(key=list(key))
    answers = comparisons.matrices(points, part.index)
    if not is_corpus(task) and np.isfinite(answers['quality']).any():
      tasks[task] = _TaskPoints(part.set_index('key'), answers)
  if not tasks:
    return None
  first, *rest = (task.table for task in tasks.values())
  keys = [k for k in first.index if all(k in part.index for part in rest)]
  common = first.loc[keys]
  baselines = {
    name: int(indices[0])
    for name, method in _MODELS.items()
    if len(indices := np.flatnonzero(common.method == method))
  }
  if 'over_verifier' not in baselines:
    return None
  rows, score = _sums(tasks, keys, list(baselines.values()))
  # Each resample has the same number of examples of a task.
  strata = list(map(len, rows))
  if min(strata) < 2:
    return None
  names = ('quality', *baselines, 'latency')
  scores = comparisons.scored(
    np.concatenate(rows), score, names, config, strata=strata
  )
  return common.reset_index(drop=True).assign(
    task=ALL if len(tasks) > 1 else next(iter(tasks)),
    **dict.fromkeys(with_ends('over_drafter'), math.nan) | scores,
  )


def _sums(
  tasks: Mapping[str, _TaskPoints],
  keys: Sequence[tuple],
  baselines: Sequence[int],
) -> tuple[list[np.ndarray], stats.Score]:
  """Returns the summands of each example, and the scores of their sums.

  Args:
    tasks: Points and answers by the name of the task.
    keys: Keys of the points that every task has.
    baselines: Indices of the models alone among the keys.

  Returns:
    Rows of each task, and the score, for `stats.bootstrap`. The scores are
    quality, the gain over each model alone, and latency, each of all points.
  """
  size, blocks = len(keys), []
  for i, (task, (table, answers)) in enumerate(tasks.items()):
    order = [table.index.get_loc(key) for key in keys]
    quality = answers['quality'] / comparisons.scale(task, answers['quality'])
    # Only examples that every point answered, so that the mixtures are equal.
    answered = np.isfinite(answers['emitted'][:, order]).all(1)
    quality, latency, emitted = (
      matrix[np.ix_(answered, order)]
      for matrix in (quality, answers['latency'], answers['emitted'])
    )
    block = np.zeros((answered.sum(), len(tasks) * (size + 1) + 2 * size))
    start = i * (size + 1)
    block[:, start] = 1
    block[:, start + 1 : start + 1 + size] = quality
    block[:, -2 * size :] = np.concatenate([latency, emitted], 1)
    blocks.append(block)

  def score(sums: np.ndarray) -> np.ndarray:
    by_task = [
      sums[..., i * (size + 1) + 1 : (i + 1) * (size + 1)]
      / sums[..., i * (size + 1), None]
      for i in range(len(tasks))
    ]
    quality = sum(by_task) / len(tasks)
    gained = [quality - quality[..., index, None] for index in baselines]
    latency = sums[..., -2 * size : -size] / sums[..., -size:]
    return np.concatenate([quality, *gained, latency], -1)

  return blocks, score


def best_per_curve(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the point of each curve with the largest gain over both models.

  Args:
    frame: Points over all tasks, as `mix` makes them.

  Returns:
    Rows of the frame, the best curve first, without models alone and oracles.
    `above` is the gain over the better model, negative if there is none, and
    `above_low` the lower end of the lower of the two intervals.
  """
  is_baseline = frame.method.isin(reference_points.BASELINES)
  # No method can run as an oracle.
  points = frame[~is_baseline & ~frame.oracle]
  above = points[list(_MODELS)].astype(float).min(axis=1)
  low = points[[f'{name}_low' for name in _MODELS]].astype(float)
  points = points.assign(above=above, above_low=low.min(axis=1, skipna=False))
  points = points[np.isfinite(above)].sort_values(
    ['above', 'latency'], ascending=[False, True], kind='stable'
  )
  return points.drop_duplicates(ACROSS)


def at_fastest_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects each curve and lenience at the gamma that makes it fastest.

  Gammas at which a point has another law are points of their own.

  Args:
    frame: Points over all tasks, as `mix` makes them.

  Returns:
    Rows of the frame, in its order.
  """
  points = comparisons.with_blocks(frame, ACROSS)
  order = points.sort_values('latency', kind='stable')
  fastest = order.drop_duplicates([*ACROSS, 'lenience', 'law'])
  return frame.loc[fastest.index.sort_values()]
