"""What a sweep comes to: three answers, over all of its tasks.

How much faster at the verifier's quality, how much better within its latency,
and whether a cascade is better than both models. Each is the best of many
points, on the examples that it was chosen on: what would hold of a point that
was chosen before is what `calibration` and `risk` say.
"""

import dataclasses

import numpy as np
import pandas as pd

from experiments.analysis import mixture, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points
from experiments.records import stats


# Frames are not equal to anything in one word.
@dataclasses.dataclass(frozen=True, eq=False)
class Headline:
  """Points that stand out among all, each None where there is none.

  Attributes:
    strict: The fastest that emits what the verifier would.
    fastest: The fastest whose quality is the verifier's, within the margin.
    best: Of those that take no longer than the verifier, the best.
    above: The one furthest above the better model.
  """

  strict: pd.Series | None
  fastest: pd.Series | None
  best: pd.Series | None
  above: pd.Series | None


def summarize(points: pd.DataFrame, config: AnalysisConfig) -> Headline | None:
  """The answers; None where there is no verifier alone to compare with.

  Args:
    points: A row per point of one run and temperature, as `mixture.mix` makes
      them.
    config: Says by how much a quality may be less and still be the verifier's.
  """
  if points.empty:
    return None
  shown = points[
    ~points.method.isin(reference_points.BASELINES) & ~points.oracle
  ]
  shown = shown[np.isfinite(shown.latency)]
  if shown.empty:
    return None
  good = stats.not_inferior(
    shown.over_verifier_low.to_numpy(dtype=float), config.margin
  )
  fastest = shown[good].sort_values('latency', kind='stable')
  best = shown[shown.latency <= 1].sort_values(
    ['quality', 'latency'], ascending=[False, True], kind='stable'
  )
  strict = shown[
    shown.lenience == shown.method.map(reference_points.strict_lenience)
  ]
  strict = strict.sort_values('latency', kind='stable')
  above = mixture.best_per_curve(points)
  return Headline(*map(_first, (strict, fastest, best, above)))


def entrants(found: Points) -> list[pd.Series]:
  """What is worth timing: both models alone, strict, and the fastest as good.

  Args:
    found: Points and answers of one run.

  Returns:
    Rows as `mixture.mix` makes them, each once; none where there is no
    verifier alone to compare with.
  """
  config = AnalysisConfig()
  points = mixture.at_fastest_gamma(mixture.mix(found, config))
  told = summarize(points, config)
  if told is None:
    return []
  alone = [
    row
    for _, row in points[
      points.method.isin(reference_points.BASELINES)
    ].iterrows()
  ]
  rows = [*alone, told.strict, told.fastest]
  return list({row.name: row for row in rows if row is not None}.values())


def _first(frame: pd.DataFrame) -> pd.Series | None:
  return frame.iloc[0] if len(frame) else None
