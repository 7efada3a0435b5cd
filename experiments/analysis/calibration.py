"""Leniences chosen on half of the examples and judged on the other half.

A user chooses the lenience of a method before the test. Here the lenience is
chosen on one half of the examples for a target and judged on the other half,
against the best choice on that half. A hash of its id decides the half of an
example, which is the same for every method.
"""

import hashlib
import math

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import ACROSS, CURVE, GROUP, RUN, Points

# By target: the column that it bounds, by the field of `AnalysisConfig` of the
# same name, and the column that is then minimized.
TARGETS = {'quality': ('loss', 'latency'), 'latency': ('latency', 'loss')}
# Columns may have been written with fewer digits than the values have.
_ROUNDING = 1e-9


def half(example: str, seed: int) -> int:
  """Returns the half of an example, 0 or 1, from its id and a seed alone."""
  return hashlib.sha256(f'{seed} {example}'.encode()).digest()[0] & 1


def halves(points: Points, seed: int) -> tuple[Points, Points]:
  """Splits the answers into two halves by example; both have all points."""
  ids = {i: half(i, seed) for i in points.answers.id.unique()}
  side = points.answers.id.map(ids)
  selection, evaluation = (
    Points(points.table, points.answers[side == i].reset_index(drop=True))
    for i in (0, 1)
  )
  return selection, evaluation


def _candidates(points: Points) -> pd.DataFrame:
  """Returns the points to choose from, with loss and latency.

  The points have one common gamma, because only the lenience is chosen. All of
  a run have the same examples, those that each of them answered.
  """
  keys = ['task', *RUN]
  answers = points.answers.join(points.table[keys], on='point')
  count = answers.groupby([*keys, 'id']).point.transform('nunique')
  num_points = answers.groupby(keys).point.transform('nunique')
  frame = comparisons.rates(
    Points(points.table, points.answers[count == num_points])
  )
  loss = pd.Series(math.nan, frame.index)
  for _, part in frame.groupby(GROUP, sort=False):
    reference = comparisons.references(part)
    if (reference >= 0).all():
      level = part.quality.to_numpy()[reference]
      loss[part.index] = (level - part.quality) / part.scale
  frame = frame.assign(loss=loss)
  frame = frame[~frame.method.isin(reference_points.BASELINES)]
  frame = comparisons.at_common_gamma(frame)
  return frame[np.isfinite(frame.loss) & np.isfinite(frame.latency)]


def choose(curve: pd.DataFrame, target: str, config: AnalysisConfig) -> int:
  """Chooses the best point that meets a target, else the nearest to it."""
  bounded, minimized = TARGETS[target]
  is_met = curve[bounded] <= getattr(config, bounded) + _ROUNDING
  eligible = curve[is_met] if is_met.any() else curve
  order = [minimized, bounded] if is_met.any() else [bounded, minimized]
  return eligible.sort_values(order, kind='stable').index[0]


_COLUMNS = (
  'target temperature run batch_size variant gamma task lenience loss latency'
  ' kept best_lenience best_loss best_latency regret point'
).split()


def calibrate(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Chooses leniences on half of each task, and judges them on the rest."""
  selection, evaluation = map(_candidates, halves(points, config.seed))
  evaluation_curves = dict(list(evaluation.groupby(CURVE)))
  rows = []
  for _, part in selection.groupby(ACROSS, sort=False):
    for target, (bounded, minimized) in TARGETS.items():
      for key, curve in part.groupby(CURVE, sort=False):
        point = choose(curve, target, config)
        if point not in evaluation.index:
          continue
        row = evaluation.loc[point]
        best = evaluation.loc[choose(evaluation_curves[key], target, config)]
        bound = getattr(config, bounded) + _ROUNDING
        rows.append(
          dict(zip(CURVE, key, strict=True))
          | row[['gamma', 'lenience', 'loss', 'latency']].to_dict()
          | {f'best_{k}': best[k] for k in ('lenience', 'loss', 'latency')}
          | {
            'target': target,
            'kept': bool(row[bounded] <= bound),
            'regret': row[minimized] - best[minimized],
            'point': point,
          }
        )
  return pd.DataFrame(rows, columns=_COLUMNS)


def significance(
  points: Points, calibrated: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame:
  """Tests the leniences chosen for quality on the half that judges."""
  _, evaluation = halves(points, config.seed)
  return comparisons.significance(
    evaluation, calibrated[calibrated.target == 'quality'].point.tolist()
  )
