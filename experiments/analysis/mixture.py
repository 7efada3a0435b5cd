"""All tasks together: scores against both models alone, headlines, the race.

If the drafter knows one task better than the verifier does, no model alone is
best on every task, and a rule that follows the surer model can be better than
both. Tasks count equally, each as a share of its best score.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.comparisons import with_ends
from experiments.analysis.runs import (
  ACROSS,
  RUN,
  Points,
  Run,
  gather,
  is_corpus,
)
from experiments.records import stats

# Name of all tasks together, in the column of the task.
ALL = 'all tasks'
_POINT = [*ACROSS, 'lenience', 'gamma']
# The baseline of each column of gains.
_MODELS = {
  'over_verifier': reference_points.VERIFIER,
  'over_drafter': reference_points.DRAFTER,
}


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
  tables, answers = [], []
  for task, part in table.groupby('task', sort=False):
    # As text, because nan differs from itself and cannot be a key.
    key = zip(part.variant, map(str, part.lenience), part.gamma, strict=True)
    of_task = comparisons.matrices(points, part.index)
    if not is_corpus(task) and np.isfinite(of_task['quality']).any():
      tables.append(part.set_index(pd.Index(list(key), tupleize_cols=False)))
      answers.append(of_task)
  if not tables:
    return None
  first, *rest = tables
  keys = [k for k in first.index if all(k in part.index for part in rest)]
  common = first.loc[keys]
  baselines = {
    name: int(indices[0])
    for name, method in _MODELS.items()
    if len(indices := np.flatnonzero(common.method == method))
  }
  if 'over_verifier' not in baselines:
    return None
  quality, rows = [], []
  for part, of_task in zip(tables, answers, strict=True):
    order = [part.index.get_loc(key) for key in keys]
    # Of the examples that every point answered, so that mixtures are equal.
    answered = np.isfinite(of_task['emitted'][:, order]).all(1)
    values, *summands = (
      of_task[name][np.ix_(answered, order)]
      for name in ('quality', 'latency', 'emitted')
    )
    quality.append(values)
    rows.append(np.concatenate(summands, 1))
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
    task=ALL if len(tables) > 1 else first.task.iloc[0],
    as_good=good | common.strict.to_numpy(),
    **dict.fromkeys(with_ends('over_drafter'), math.nan) | scores,
  )


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


# The fields hold series, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Headline:
  """The points behind the headline results."""

  strict: pd.Series | None
  fastest: pd.Series | None
  best: pd.Series | None
  above: pd.Series | None


def headline(frame: pd.DataFrame) -> Headline | None:
  """Summarizes a sweep in headline results, over all of its tasks.

  Each is the best of many points on the examples that it was chosen on.
  """
  if frame.empty:
    return None
  frame = comparisons.with_blocks(_decodable(frame))
  candidates = frame[~frame.method.isin(reference_points.BASELINES)]
  candidates = candidates[np.isfinite(candidates.latency)]
  if candidates.empty:
    return None
  within_time = candidates[candidates.latency <= 1].sort_values(
    ['quality', 'latency'], ascending=[False, True], kind='stable'
  )
  strict = candidates[candidates.strict]
  return Headline(
    strict=_first(strict.sort_values('latency', kind='stable')),
    fastest=_first(
      candidates[candidates.as_good].sort_values('latency', kind='stable')
    ),
    best=_first(within_time),
    above=_first(best_per_curve(frame)),
  )


def entrants(points: Points) -> list[pd.Series]:
  """Selects the points to time against each other on the clock.

  The entrants are both models alone, the fastest strict point, and the fastest
  point with the verifier's quality.
  """
  frame = comparisons.at_fastest_gamma(mix(points, AnalysisConfig()))
  results = headline(frame)
  if results is None:
    return _without_quality(points)
  baselines = frame[frame.method.isin(reference_points.BASELINES)]
  rows = [row for _, row in baselines.iterrows()]
  rows += [results.strict, results.fastest]
  return list({row.name: row for row in rows if row is not None}.values())


def _without_quality(points: Points) -> list[pd.Series]:
  """Selects both models alone and the fastest strict point."""
  # Of an answer, since points may have other numbers of them.
  latency = points.answers.groupby('point').latency.mean()
  table = _decodable(points.table).assign(latency=latency)
  key = ['method', 'variant', 'lenience', 'gamma', 'strict']
  # Over all tasks; nan is a lenience.
  frame = table.groupby(key, dropna=False, sort=False, as_index=False)
  frame = frame.latency.sum()
  if reference_points.VERIFIER not in set(frame.method):
    return []
  is_alone = frame.method.isin(reference_points.BASELINES)
  strict = frame[~is_alone & frame.strict]
  strict = strict.sort_values('latency', kind='stable')[:1]
  rows = pd.concat([frame[is_alone], strict])
  return [row for _, row in rows.iterrows()]


def _decodable(frame: pd.DataFrame) -> pd.DataFrame:
  """Leaves out cascades without speculation, whose calls are only counted."""
  pattern = rf'\b{reference_points.SEQUENTIAL}\b'
  return frame[~frame.variant.str.contains(pattern)]


def _first(frame: pd.DataFrame) -> pd.Series | None:
  """Returns the first row of a frame; None if there is none."""
  return frame.iloc[0] if len(frame) else None


def timed_points(run: Run) -> Points | None:
  """Returns the points that a run timed, one prompt at a time, over all tasks.

  Wall-clock times of other points cannot be compared: rows are decoded
  together, and a batch that is half empty is slower per token.
  """
  if not run.race:
    return None
  # Tasks may have examples of the same id, and qualities of several scales.
  changes = {'task': ALL, 'quality': math.nan}
  together = [
    dataclasses.replace(r, **changes, id=f'{r.task} {r.id}') for r in run.race
  ]
  timed = dataclasses.replace(
    run, records={'race': together}, config=run.config | {'batch_size': 1}
  )
  return gather([timed], clock=True)


def compare_times(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Compares each timed point with the verifier alone."""
  frame = comparisons.compare(points, config)
  frame = frame[frame.method != reference_points.VERIFIER]
  return frame.assign(by_model=frame.speedup / frame.wall_speedup)
