"""Lenience chosen on some examples, and judged on others.

Whoever uses a method has to choose its lenience before the test. Here it is
chosen on one half of the examples for a target, and judged on the other half,
beside the best that could have been chosen there; then on other tasks.
Examples are halved by a hash of their ids: the same half for every method.
"""

import hashlib
import math

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, roles
from experiments.analysis.choice import Choice
from experiments.analysis.runs import ACROSS, CURVE, GROUP, Points

# By what is asked for: the column (of points, and of `Choice`) that it bounds,
# and the one that is then made best.
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
    reference, _ = comparisons.references(part)
    if (reference >= 0).all():
      level = part.quality.to_numpy()[reference]
      loss[part.index] = (level - part.quality) / part.scale
  frame = frame.assign(loss=loss)
  frame = frame[~frame.method.isin(roles.BASELINES)]
  frame = comparisons.at_common_gamma(frame)
  return frame[np.isfinite(frame.loss) & np.isfinite(frame.latency)]


def choose(points: pd.DataFrame, target: str, choice: Choice) -> int:
  """The point that is best where the target holds, else the nearest to it.

  Args:
    points: The points of one curve, with columns loss and latency.
    target: Key of `TARGETS`.
    choice: Says what the target is.

  Returns:
    Its label in the frame.
  """
  asked, best = TARGETS[target]
  held = points[asked] <= getattr(choice, asked) + _ROUNDING
  among = points[held] if held.any() else points
  order = [best, asked] if held.any() else [asked, best]
  return among.sort_values(order, kind='stable').index[0]


def _verdict(
  there: pd.DataFrame, lenience: float, target: str, choice: Choice
) -> dict[str, float] | None:
  """A lenience among the points of a curve, beside the best of them."""
  # nan is not equal to itself.
  same = there[
    (there.lenience == lenience) | (there.lenience.isna() & np.isnan(lenience))
  ]
  if same.empty:
    return None
  one, best = same.iloc[0], there.loc[choose(there, target, choice)]
  asked, measured = TARGETS[target]
  return {
    'loss': one.loss,
    'latency': one.latency,
    'kept': bool(one[asked] <= getattr(choice, asked) + _ROUNDING),
    'best_lenience': best.lenience,
    'best_loss': best.loss,
    'best_latency': best.latency,
    'regret': one[measured] - best[measured],
    'point': same.index[0],
  }


_COLUMNS = (
  'target temperature run batch_size variant gamma chosen_on task lenience loss'
  ' latency kept best_lenience best_loss best_latency regret point'
).split()


def calibrate(found: Points, choice: Choice) -> pd.DataFrame:
  """Leniences chosen on a half of each task, judged on the other of every task.

  Args:
    found: Points and answers.
    choice: The targets, and the seed of the halves.

  Returns:
    A row per target, curve, task that it was chosen on and task that it is
    judged on, with that lenience: loss (of quality, as a share) and latency on
    the half that judges, kept (whether the target holds there), the best
    lenience of that half with its loss and latency, regret (latency, or
    quality, given away against it; less than 0 where it breaks the target), and
    point (its row). Curves of a single point have no choice, and are in it all
    the same.
  """
  first, second = map(_judged, halves(found, choice.seed))
  rows = []
  for key, seen in first.groupby(ACROSS, sort=False):
    unseen = second
    for name, value in zip(ACROSS, key, strict=True):
      unseen = unseen[unseen[name] == value]
    for target in TARGETS:
      for task, there in seen.groupby('task', sort=False):
        chosen = there.loc[choose(there, target, choice)]
        for other, judged in unseen.groupby('task', sort=False):
          verdict = _verdict(judged, chosen.lenience, target, choice)
          if verdict:
            rows.append(
              dict(zip(ACROSS, key, strict=True))
              | {
                'target': target,
                'gamma': chosen.gamma,
                'chosen_on': task,
                'task': other,
                'lenience': chosen.lenience,
              }
              | verdict
            )
  return pd.DataFrame(rows, columns=_COLUMNS)


def own(frame: pd.DataFrame, target: str) -> pd.DataFrame:
  """What was judged on the task that it was chosen on.

  Args:
    frame: Chosen leniences, as `calibrate` judges them.
    target: Key of `TARGETS`.
  """
  return frame[(frame.task == frame.chosen_on) & (frame.target == target)]


def transfer(frame: pd.DataFrame, target: str) -> pd.DataFrame:
  """Whether one task's lenience serves another.

  Args:
    frame: Chosen leniences, as `calibrate` judges them.
    target: Key of `TARGETS`.

  Returns:
    For each task it was chosen on (rows) and each it is judged on (columns),
    the share of the curves for which the target holds.
  """
  part = frame[frame.target == target]
  return part.pivot_table(
    index='chosen_on',
    columns='task',
    values='kept',
    aggfunc=lambda kept: float(np.mean(kept.astype(float))),
    sort=False,
  )


def by_judge(
  frame: pd.DataFrame, target: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Each chosen lenience beside itself on every task.

  Args:
    frame: Chosen leniences, as `calibrate` judges them.
    target: Key of `TARGETS`.

  Returns:
    Two frames, each with a row per curve and task that a lenience was chosen
    on, and a column per task that judges: what the target bounds, and 1 where
    the target is kept, else 0; nan where the lenience was not run.
  """
  part = frame[frame.target == target]
  part = part.assign(kept=part.kept.astype(float))
  bounded, _ = TARGETS[target]
  wide = part.pivot_table(
    index=[*ACROSS, 'chosen_on'],
    columns='task',
    values=[bounded, 'kept'],
    sort=False,
    dropna=False,
  )
  tasks = part.task.unique()
  values, kept = (
    wide[name].reindex(columns=tasks) for name in (bounded, 'kept')
  )
  run = values.notna().any(axis=1)
  return values[run], kept[run]


def tested(found: Points, frame: pd.DataFrame, choice: Choice) -> pd.DataFrame:
  """`comparisons.significance` on the half that no lenience was chosen on.

  Args:
    found: Points and answers.
    frame: Chosen leniences, as `calibrate` judges them: those of the quality
      are tested.
    choice: The seed of the halves.
  """
  _, other = halves(found, choice.seed)
  return comparisons.significance(other, own(frame, 'quality').point.tolist())


def typical(points: pd.DataFrame, frame: pd.DataFrame) -> list[int]:
  """A point of each curve: the one chosen for quality, else a middling one.

  Args:
    points: A row per point, as in `Points`.
    frame: Chosen leniences, as `calibrate` judges them.

  Returns:
    Rows of `points`, in order.
  """
  chosen = own(frame, 'quality').point.astype(int).tolist()
  have = {tuple(points.loc[i, CURVE]) for i in chosen}
  for key, part in comparisons.at_common_gamma(points).groupby(
    CURVE, sort=False
  ):
    if key not in have:
      part = part.sort_values('lenience', kind='stable')
      chosen.append(part.index[len(part) // 2])
  return sorted(chosen)
