"""Lenience chosen on some examples, and judged on others.

Whoever uses a method has to choose its lenience before the test. Here it is
chosen on one half of the examples for a target, and judged on the other half,
beside the best that could have been chosen there. Examples are halved by a hash
of their ids: the same half for every method.
"""

import hashlib
import math

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import ACROSS, CURVE, GROUP, Points

# By target: the column that it bounds, by the field of `AnalysisConfig` of the
# same name, and the column that is then minimized.
TARGETS = {'quality': ('loss', 'latency'), 'latency': ('latency', 'loss')}
# For columns that were written with fewer digits than they have.
_ROUNDING = 1e-9


def half(example: str, seed: int) -> int:
  """0 or 1: which half an example is in, whatever the others are."""
  return hashlib.sha256(f'{seed} {example}'.encode()).digest()[0] & 1


def halves(found: Points, seed: int) -> tuple[Points, Points]:
  """Answers to choose on, and answers to judge on; the same points."""
  ids = {i: half(i, seed) for i in found.answers.id.unique()}
  side = found.answers.id.map(ids)
  one, other = (
    Points(found.points, found.answers[side == i].reset_index(drop=True))
    for i in (0, 1)
  )
  return one, other


def _judged(found: Points) -> pd.DataFrame:
  """Points that could be chosen: loss against the verifier, and latency.

  One gamma for all, for it is the lenience that is chosen.
  """
  frame = comparisons.rates(found)
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


def choose(points: pd.DataFrame, target: str, config: AnalysisConfig) -> int:
  """The point that is best where the target holds, else the nearest to it.

  Args:
    points: The points of one curve, with columns loss and latency.
    target: Key of `TARGETS`.
    config: Says what the target is.

  Returns:
    Its label in the frame.
  """
  asked, best = TARGETS[target]
  held = points[asked] <= getattr(config, asked) + _ROUNDING
  among = points[held] if held.any() else points
  order = [best, asked] if held.any() else [asked, best]
  return among.sort_values(order, kind='stable').index[0]


_COLUMNS = (
  'target temperature run batch_size variant gamma task lenience loss latency'
  ' kept best_lenience best_loss best_latency regret point'
).split()


def calibrate(found: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Leniences chosen on a half of each task, judged on the other.

  Args:
    found: Points and answers.
    config: The targets, and the seed of the halves.

  Returns:
    A row per target, curve and task, with the lenience that was chosen: loss
    (of quality, as a share) and latency on the half that judges, kept (whether
    the target holds there), the best lenience of that half with its loss and
    latency, regret (latency, or quality, given away against it; less than 0
    where it breaks the target), and point (its row). Curves of a single point
    have no choice, and are in it all the same.
  """
  first, second = map(_judged, halves(found, config.seed))
  curves = dict(list(second.groupby(CURVE)))
  rows = []
  for _, part in first.groupby(ACROSS, sort=False):
    for target, (asked, measured) in TARGETS.items():
      for key, seen in part.groupby(CURVE, sort=False):
        point = choose(seen, target, config)
        if point not in second.index:
          continue
        one = second.loc[point]
        best = second.loc[choose(curves[key], target, config)]
        rows.append(
          dict(zip(CURVE, key, strict=True))
          | one[['gamma', 'lenience', 'loss', 'latency']].to_dict()
          | {f'best_{k}': best[k] for k in ('lenience', 'loss', 'latency')}
          | {
            'target': target,
            'kept': bool(one[asked] <= getattr(config, asked) + _ROUNDING),
            'regret': one[measured] - best[measured],
            'point': point,
          }
        )
  return pd.DataFrame(rows, columns=_COLUMNS)


def tested(
  found: Points, frame: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame:
  """`comparisons.significance` on the half that no lenience was chosen on.

  Args:
    found: Points and answers.
    frame: Chosen leniences, as `calibrate` judges them: those of the quality
      are tested.
    config: The seed of the halves.
  """
  _, other = halves(found, config.seed)
  return comparisons.significance(
    other, frame[frame.target == 'quality'].point.tolist()
  )
