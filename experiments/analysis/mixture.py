"""All tasks together: where a cascade can be better than either model.

A verifier that knows a little of everything, and a drafter that knows one task
better: no model alone is best everywhere, and a rule that takes each one's word
where it is surer can be better than both. Tasks count equally, each as a share
of the best that it can give.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.comparisons import with_ends
from experiments.analysis.runs import ACROSS, RUN, Points, is_corpus
from experiments.records import stats

# What the mixture is called where a task would be.
ALL = 'all tasks'
_POINT = [*ACROSS, 'lenience', 'gamma']
# What a point is compared with, by the column that says so.
_MODELS = {
  'over_verifier': reference_points.VERIFIER,
  'over_drafter': reference_points.DRAFTER,
}


def mix(found: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Points over all tasks of each run, against both models alone.

  Args:
    found: Points and answers; tasks whose quality is one of all answers
      together, and those without any, are left out.
    config: How intervals are drawn.

  Returns:
    A row per curve, lenience and gamma that is there in every task, the models
    alone among them: task (`ALL`, or the only one), method, oracle, quality
    (mean over tasks, as a share), latency (modelled, per token of all of them),
    and over_verifier and over_drafter (quality gained), all with intervals over
    the examples, those of gains paired; over_drafter is nan where the drafter
    did not answer alone. None of a run where a task has fewer than two
    examples, or the verifier alone is missing.
  """
  parts = [
    part
    for _, points in found.points.groupby(RUN, sort=False)
    if (part := _mixed(found, points, config)) is not None
  ]
  columns = ['task', *_POINT, 'method', 'oracle']
  for name in ('quality', 'latency', *_MODELS):
    columns += with_ends(name)
  if not parts:
    return pd.DataFrame(columns=columns)
  return pd.concat(parts, ignore_index=True)[columns]


def multi_task_points(frame: pd.DataFrame) -> pd.DataFrame:
  """Points of runs that have several tasks, and both models alone on each.

  Args:
    frame: Points over all tasks, as `mix` makes them.
  """
  keys = [frame[name] for name in RUN]
  drafter = (
    frame.method.eq(reference_points.DRAFTER).groupby(keys).transform('any')
  )
  return frame[drafter & (frame.task == ALL)]


def _mixed(
  found: Points, points: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame | None:
  """What is said of one run; None where nothing can be said."""
  tasks = {}
  for task, part in points.groupby('task', sort=False):
    # nan is not equal to itself, and no key.
    key = zip(part.variant, map(str, part.lenience), part.gamma, strict=True)
    part = part.assign(key=list(key))
    of = comparisons.matrices(found, part.index)
    if not is_corpus(task) and np.isfinite(of['quality']).any():
      tasks[task] = part.set_index('key'), of
  if not tasks:
    return None
  first, *others = (part for part, _ in tasks.values())
  keys = [k for k in first.index if all(k in part.index for part in others)]
  told = first.loc[keys]
  alone = {
    name: int(places[0])
    for name, method in _MODELS.items()
    if len(places := np.flatnonzero(told.method == method))
  }
  if 'over_verifier' not in alone:
    return None
  rows, score = _sums(tasks, keys, list(alone.values()))
  # A mixture has as many examples of each task in every draw.
  strata = list(map(len, rows))
  if min(strata) < 2:
    return None
  names = ('quality', *alone, 'latency')
  return told.reset_index(drop=True).assign(
    task=ALL if len(tasks) > 1 else next(iter(tasks)),
    **dict.fromkeys(with_ends('over_drafter'), math.nan)
    | comparisons.scored(np.concatenate(rows), score, names, config, strata),
  )


def _sums(
  tasks: Mapping[str, tuple[pd.DataFrame, dict[str, np.ndarray]]],
  keys: Sequence[tuple],
  alone: Sequence[int],
) -> tuple[list[np.ndarray], stats.Score]:
  """What each example adds, and the scores that its sums make.

  Args:
    tasks: Points by key, and what `comparisons.matrices` made of them, by the
      name of the task.
    keys: What tells the points apart that every task has.
    alone: Places of the models alone among the keys.

  Returns:
    Rows of each task, and the score, for `stats.bootstrap`; scores are
    quality, what is gained over each model alone, and latency, each for all
    points.
  """
  size, blocks = len(keys), []
  for i, (task, (part, of)) in enumerate(tasks.items()):
    order = [part.index.get_loc(key) for key in keys]
    quality = of['quality'] / comparisons.scale(task, of['quality'])
    # Only what everyone answered: a mixture of other examples is another one.
    there = np.isfinite(of['emitted'][:, order]).all(1)
    one = [quality, of['latency'], of['emitted']]
    one = [matrix[np.ix_(there, order)] for matrix in one]
    block = np.zeros((there.sum(), len(tasks) * (size + 1) + 2 * size))
    at = i * (size + 1)
    block[:, at] = 1
    block[:, at + 1 : at + 1 + size] = one[0]
    block[:, -2 * size :] = np.concatenate(one[1:], 1)
    blocks.append(block)

  def score(sums: np.ndarray) -> np.ndarray:
    of_task = [
      sums[..., i * (size + 1) + 1 : (i + 1) * (size + 1)]
      / sums[..., i * (size + 1), None]
      for i in range(len(tasks))
    ]
    quality = sum(of_task) / len(tasks)
    gained = [quality - quality[..., place, None] for place in alone]
    latency = sums[..., -2 * size : -size] / sums[..., -size:]
    return np.concatenate([quality, *gained, latency], -1)

  return blocks, score


def best_per_curve(frame: pd.DataFrame) -> pd.DataFrame:
  """Of each curve, the point that is furthest above the better model.

  Args:
    frame: Points over all tasks, as `mix` makes them.

  Returns:
    Its rows, the best curve first, without models alone and oracles; `above`
    is by how much it is above the better model, less than 0 where it is not,
    and `above_low` the lower end of the nearer of the two intervals.
  """
  # An oracle is no cascade that could be run.
  shown = frame[~frame.method.isin(reference_points.BASELINES) & ~frame.oracle]
  above = shown[list(_MODELS)].astype(float).min(axis=1)
  low = shown[[f'{name}_low' for name in _MODELS]].astype(float)
  shown = shown.assign(above=above, above_low=low.min(axis=1, skipna=False))
  shown = shown[np.isfinite(above)].sort_values(
    ['above', 'latency'], ascending=[False, True], kind='stable'
  )
  return shown.drop_duplicates(ACROSS)


def at_fastest_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Of each curve and lenience the gamma that makes it fastest.

  Args:
    frame: Points over all tasks, as `mix` makes them.

  Returns:
    Its rows, in its order.
  """
  order = frame.sort_values('latency', kind='stable')
  kept = order.drop_duplicates([*ACROSS, 'lenience'])
  return frame.loc[kept.index.sort_values()]
