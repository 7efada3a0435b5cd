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
  """The points of one task, and their answers."""

  table: pd.DataFrame
  answers: dict[str, np.ndarray]


def mix(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Scores the points of each run over all of its tasks."""
  parts = [
    mixed
    for _, table in points.table.groupby(RUN, sort=False)
    if (mixed := _mix_run(points, table, config)) is not None
  ]
  columns = ['task', *_POINT, 'method', 'oracle', 'strict', 'law', 'as_good']
  for name in ('quality', 'latency', *_MODELS):
    columns += with_ends(name)
  if not parts:
    return pd.DataFrame(columns=columns)
  return pd.concat(parts, ignore_index=True)[columns]


def _mix_run(
  points: Points, table: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame | None:
  """Scores the points of one run over all of its tasks."""
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
  quality, rows = _matrices(tasks, keys)
  # Each resample has the same number of examples of a task.
  strata = list(map(len, rows))
  if min(strata) < 2:
    return None

  def latency(sums: np.ndarray) -> np.ndarray:
    return sums[..., : len(keys)] / sums[..., len(keys) :]

  scores = comparisons.scored(
    np.concatenate(rows), latency, ('latency',), config, strata=strata
  )
  for name, index in {'quality': None, **baselines}.items():
    scores |= zip(with_ends(name), _over_tasks(quality, index), strict=True)
  good = scores['over_verifier_low'] > -config.margin
  # An answer that the verifier has wrong cannot be lost.
  verifier = baselines['over_verifier']
  good &= all(values[:, verifier].any() for values in quality)
  return common.reset_index(drop=True).assign(
    task=ALL if len(tasks) > 1 else next(iter(tasks)),
    as_good=good | common.strict.to_numpy(),
    **dict.fromkeys(with_ends('over_drafter'), math.nan) | scores,
  )


def _matrices(
  tasks: Mapping[str, _TaskPoints], keys: Sequence[tuple]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Returns quality, and the summands of latency, of the answers to each task.

  They are of the examples that every point answered: [examples, points] and
  [examples, 2 points], so that the mixtures are equal.
  """
  quality, rows = [], []
  for table, answers in tasks.values():
    order = [table.index.get_loc(key) for key in keys]
    answered = np.isfinite(answers['emitted'][:, order]).all(1)
    part = {
      name: answers[name][np.ix_(answered, order)]
      for name in ('quality', 'latency', 'emitted')
    }
    quality.append(part['quality'])
    rows.append(np.concatenate([part['latency'], part['emitted']], 1))
  return quality, rows


def _over_tasks(
  quality: Sequence[np.ndarray], baseline: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the mean over tasks of each point's quality, with its interval.

  The quality of the baseline, if there is one, is subtracted.
  """
  estimates = []
  for values in quality:
    if baseline is None:
      estimates.append((values.mean(0), *stats.mean_interval(values)))
      continue
    reference = np.repeat(values[:, [baseline]], values.shape[1], 1)
    low, high = stats.paired_interval(values, reference)
    low[baseline] = high[baseline] = 0
    estimates.append(((values - reference).mean(0), low, high))
  means, low, high = np.stack(estimates, 1)
  return means.mean(0), *stats.mean_of_intervals(means, low, high)


def best_per_curve(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the point of each curve with the largest gain over both models."""
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
