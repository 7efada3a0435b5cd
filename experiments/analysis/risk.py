"""The loosest lenience that loses little, with a guarantee.

Learn-then-test (Angelopoulos et al. 2021, arXiv 2110.01052): for each lenience
the hypothesis "more than `risk` of the quality is lost against the verifier" is
tested on n examples, from the strictest lenience to the loosest, until the
first that is not rejected. Such a fixed sequence needs no further correction
for the number of leniences: with probability 1 - delta or more, over the
examples, the one that comes out loses `risk` or less. This holds for whatever
examples there are; all that is asked is that they are independent.

What an example loses is the verifier's quality less the method's, both in
[0, 1] and of the same example, so that it is in [-1, 1]. The test bets against
the hypothesis (Waudby-Smith and Ramdas 2020, arXiv 2010.09686, section 4):
capital that begins as 1 and is multiplied by 1 + bet (risk - loss) at each
example grows beyond 1 / delta with probability delta or less where the
hypothesis is true, by Ville's inequality.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, mixture, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import ACROSS, GROUP, Points, is_corpus

# Of the capital that a single example could lose, the most that is bet.
_STAKE = 0.75


def p_value(losses: np.ndarray, risk: float, delta: float) -> np.ndarray:
  """Of the hypothesis that the mean loss is more than `risk`.

  Args:
    losses: What each example loses, in [-1, 1], [..., n]; in an order that does
      not hang on them.
    risk: Loss that is allowed, in (0, 1).
    delta: Where the test is to have the most power; it is valid anywhere.

  Returns:
    Of each row, [...]: less than x with probability x or less, if true.
  """
  n = losses.shape[-1]
  if not n:
    return np.ones(losses.shape[:-1])
  # A bet is made before its example is seen.
  count = np.arange(1, n + 1)
  mean = np.cumsum(losses, -1) / count
  spread = (0.25 + np.cumsum((losses - mean) ** 2, -1)) / (count + 1)
  before = np.concatenate([np.full_like(spread[..., :1], 0.25), spread], -1)
  bet = np.sqrt(2 * math.log(1 / delta) / (n * before[..., :-1]))
  bet = np.minimum(bet, _STAKE / (1 - risk))
  capital = np.cumsum(np.log1p(bet * (risk - losses)), -1)
  return np.exp(-np.maximum(capital.max(-1), 0))


@functools.cache
def needed(risk: float, delta: float) -> int:
  """Fewest examples for a guarantee, if none of them loses anything.

  Args:
    risk: Loss that is allowed, in (0, 1).
    delta: How often the guarantee may fail, in (0, 1).

  Returns:
    At least so many; where some examples lose, it takes more.
  """

  def shown(n: int) -> bool:
    return p_value(np.zeros(n), risk, delta) <= delta

  high = next(n for i in itertools.count() if shown(n := 2**i))
  return bisect.bisect_left(range(high + 1), True, high // 2, key=shown)


def loosest(losses: np.ndarray, risk: float, delta: float) -> np.ndarray:
  """How many leniences, from the strictest on, lose `risk` or less.

  Args:
    losses: What each example loses, in [-1, 1], [..., leniences, n].
    risk: Loss that is allowed.
    delta: How often the guarantee may fail.

  Returns:
    Of each, [...]; 0 where not even the strictest is shown to.
  """
  shown = p_value(losses, risk, delta) <= delta
  return np.cumprod(shown, -1).sum(-1)


_COLUMNS = (
  'task temperature run batch_size variant gamma lenience strict lost latency p'
  ' found tried examples needed'
).split()


def control(found: Points, config: AnalysisConfig) -> pd.DataFrame:
  """The loosest lenience of each curve that loses little, with a guarantee.

  The guarantee is of one curve: of one that was chosen before, not of the best
  of them all.

  Args:
    found: Points and answers; tasks whose quality is one of all answers
      together are left out. Of several tasks, all together are one more.
    config: Says how much may be lost, and how often it may be more.

  Returns:
    A row per curve and task, of the loosest lenience that is shown to lose
    little, else of the strictest: lenience, strict (whether it emits what the
    verifier would), lost (quality on these examples, as a share), latency, p
    (of the hypothesis that more is lost), found of tried (leniences that are
    not strict), examples, and needed (examples for a guarantee where none of
    them loses anything).
  """
  losses, frame = _lost(found)
  frame = frame[~frame.method.isin(reference_points.BASELINES) & ~frame.oracle]
  frame = comparisons.at_common_gamma(frame)
  several, rows = found.points.task.nunique(), []
  for key, curves in frame.groupby(ACROSS, sort=False):
    # Of each task points from strict on, and their losses.
    tasks: dict[str, tuple[pd.DataFrame, np.ndarray]] = {}
    for task, curve in curves.groupby('task', sort=False):
      curve = _from_strict(curve)
      lost = np.stack([losses[i] for i in curve.index])
      tasks[task] = curve, lost[:, np.isfinite(lost).all(0)]
    if len(tasks) == several > 1:
      tasks |= _together(tasks)
    for task, (curve, lost) in tasks.items():
      told = dict(zip(ACROSS, key, strict=True)) | {'task': task}
      rows.append(told | _controlled(curve, lost, config))
  return pd.DataFrame(rows, columns=_COLUMNS)


def _lost(found: Points) -> tuple[dict[int, np.ndarray], pd.DataFrame]:
  """What each example of a point loses, by row; and the rates of these points.

  Points are left out whose task has no verifier alone, or a quality of all
  answers together.
  """
  losses = {}
  for (task, _), part in found.points.groupby(GROUP, sort=False):
    reference = comparisons.references(part)
    if is_corpus(task) or (reference < 0).any():
      continue
    of = comparisons.matrices(found, part.index)
    if not np.isfinite(of['quality']).any():
      continue
    quality = of['quality'] / comparisons.scale(task, of['quality'])
    lost = quality[:, reference] - quality
    losses |= dict(zip(part.index, lost.T, strict=True))
  frame = comparisons.rates(found)
  return losses, frame[frame.index.isin(losses)]


def _from_strict(curve: pd.DataFrame) -> pd.DataFrame:
  """The points of a curve from strict to drafter-only, with `strict`."""
  strict = reference_points.strict_lenience(curve.method.iloc[0])
  # Of some methods the largest lenience is the strict one.
  ascending = not strict > curve.lenience.min()
  curve = curve.sort_values('lenience', ascending=ascending, kind='stable')
  return curve.assign(strict=curve.lenience == strict)


def _together(
  tasks: Mapping[str, tuple[pd.DataFrame, np.ndarray]],
) -> dict[str, tuple[pd.DataFrame, np.ndarray]]:
  """All tasks as one, if they were run at the same leniences."""
  curves = [curve for curve, _ in tasks.values()]
  places = [list(zip(c.lenience, c.gamma, strict=True)) for c in curves]
  if any(place != places[0] for place in places):
    return {}
  # Time per token of all of them.
  tokens = sum(c.mean_output_tokens.to_numpy() * c.n.to_numpy() for c in curves)
  time = sum(
    c.latency.to_numpy() * c.mean_output_tokens.to_numpy() * c.n.to_numpy()
    for c in curves
  )
  losses = np.concatenate([lost for _, lost in tasks.values()], 1)
  return {mixture.ALL: (curves[0].assign(latency=time / tokens), losses)}


def _controlled(
  curve: pd.DataFrame, losses: np.ndarray, config: AnalysisConfig
) -> dict[str, Any]:
  """What `control` says of one curve of one task.

  Args:
    curve: Its points, from strict on.
    losses: What each example loses, [points, n].
    config: Says how much may be lost, and how often it may be more.
  """
  # What emits what the verifier would loses nothing, whatever was drawn here.
  first = int(curve.strict.iloc[0])
  count = int(loosest(losses[first:], config.risk, config.delta))
  place = max(0, first + count - 1)
  row = curve.iloc[place]
  return {
    'gamma': row.gamma,
    'lenience': row.lenience,
    'strict': bool(row.strict),
    'lost': losses[place].mean() if losses.size else math.nan,
    'latency': row.latency,
    'p': float(p_value(losses[place], config.risk, config.delta)),
    'found': count,
    'tried': len(curve) - first,
    'examples': losses.shape[1],
    'needed': needed(config.risk, config.delta),
  }
