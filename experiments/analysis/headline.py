"""Summary of a sweep in three headline results, over all of its tasks.

The results are the speed-up at the verifier's quality, the quality within the
verifier's latency, and the gain over both models. Each is the best of many
points on the examples that it was chosen on.
"""

import dataclasses

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, mixture, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points


# The fields hold series, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Headline:
  """The points behind the headline results."""

  strict: pd.Series | None
  fastest: pd.Series | None
  best: pd.Series | None
  above: pd.Series | None


def summarize(frame: pd.DataFrame) -> Headline | None:
  """Summarizes the points of a sweep in headline results."""
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
    above=_first(mixture.best_per_curve(frame)),
  )


def entrants(points: Points) -> list[pd.Series]:
  """Selects the points to time against each other on the clock.

  The entrants are both models alone, the fastest strict point, and the fastest
  point with the verifier's quality.
  """
  frame = comparisons.at_fastest_gamma(mixture.mix(points, AnalysisConfig()))
  headline = summarize(frame)
  if headline is None:
    return _without_quality(points)
  baselines = frame[frame.method.isin(reference_points.BASELINES)]
  rows = [row for _, row in baselines.iterrows()]
  rows += [headline.strict, headline.fastest]
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
