"""The summary in parts: rows that are looked at together, and the best of them.

A cut is of one task, temperature and run, and of one gamma; where gamma was
varied, there is one more in which each point has the gamma that suits it best.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import pandas as pd

from experiments.analysis import reference_points
from experiments.records import metrics

# What rows have in common that are looked at together.
_TOGETHER = ['task', 'temperature', 'run']


# Frames are not equal to anything in one word.
@dataclasses.dataclass(frozen=True, eq=False)
class SummarySlice:
  """Rows of the summary that are looked at together.

  Attributes:
    frame: A row per point, the curves that have no gamma among them: the
      columns of `runs.summary`, but with gamma 0 where there are no blocks,
      oracle (whether its cost leaves out what its rule looks at), and
      relative_length (of the output, by that of the verifier alone).
    task: What was asked.
    temperature: At which both models were sampled; None where all of the
      summary has one.
    run: Which workdir it is of; empty where that need not be told.
    gamma: The gamma of all rows; None where all of the summary has one.
    tuned: Whether each point has a gamma of its own.
    under: Cuts of the same by each gamma, where they are tuned here.
  """

  frame: pd.DataFrame
  task: str
  temperature: float | None = None
  run: str = ''
  gamma: int | None = None
  tuned: bool = False
  under: tuple['SummarySlice', ...] = ()

  @property
  def known(self) -> bool:
    """Whether anything is said of how good the answers are."""
    return bool(self.frame.quality.notna().any())


def slice_summary(frame: pd.DataFrame) -> Iterator[SummarySlice]:
  """A cut per task, temperature and run; where gamma was varied, tuned.

  Args:
    frame: Rows of several workdirs, as `runs.summary` makes them.
  """
  # The models alone, and cascades of whole answers, have no gamma.
  plain = frame.groupby('variant').gamma.transform('max') == 0
  temperatures, gammas = (
    frame[~plain][column].nunique() > 1 for column in ('temperature', 'gamma')
  )
  groups = frame.groupby(_TOGETHER, sort=False)
  for (task, temperature, run), part in groups:
    told = {
      'task': task,
      'temperature': temperature if temperatures else None,
      'run': run,
    }
    without = plain[part.index]
    single = [
      SummarySlice(
        _told(part[without | (part.gamma == gamma)]),
        **told,
        gamma=gamma if gammas else None,
      )
      for gamma in part[~without].gamma.unique()
    ]
    if len(single) > 1:
      best = _by_curve(at_fastest_gamma(part), part.variant.unique().tolist())
      yield SummarySlice(_told(best), **told, tuned=True, under=tuple(single))
    else:
      yield from single or [SummarySlice(_told(part), **told)]


def at_fastest_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Each point at the gamma that makes it fastest, judged on these examples.

  What is emitted has the same law at any gamma, so that only the latency is
  chosen; quality differs by the noise of the sampling. Bonus tokens from the
  verifier make it another law at each gamma: there every gamma is a point.

  Args:
    frame: Rows of several workdirs, as `runs.summary` makes them.

  Returns:
    A row per task, temperature, run, variant and lenience, in the order of the
    frame. Gamma 0 is not a choice, for it is the verifier alone, whatever the
    method: such rows stay only where there is no other.
  """
  keys = [*_TOGETHER, 'variant', 'lenience']
  most = frame.groupby(keys, dropna=False).gamma.transform('max')
  rows = frame[(frame.gamma > 0) | (most == 0)]
  rows = rows.assign(law=rows.gamma.where(rows.bonus_from == 'verifier', 0))
  rows = rows.sort_values('relative_latency', kind='stable')
  return frame.loc[rows.drop_duplicates([*keys, 'law']).index.sort_values()]


def _by_curve(frame: pd.DataFrame, variants: Sequence[str]) -> pd.DataFrame:
  """Curves in the order of their variants, each along its lenience."""
  appears = {v: i for i, v in enumerate(variants)}
  ranked = frame.assign(rank=frame.variant.map(appears))
  return ranked.sort_values(['rank', 'lenience'], kind='stable')


def _told(frame: pd.DataFrame) -> pd.DataFrame:
  """With what follows from the rows of a cut."""
  alone = frame[frame.variant == reference_points.VERIFIER].mean_output_tokens
  level = float(alone.iloc[0]) if len(alone) else math.nan
  oracle = list(
    map(reference_points.is_oracle, frame.method, frame.verification)
  )
  return frame.assign(
    oracle=pd.Series(oracle, frame.index, dtype=bool),
    relative_length=frame.mean_output_tokens / level,
  )


def no_worse(one: SummarySlice) -> pd.DataFrame | None:
  """Points that score no worse than the verifier alone, fastest first.

  They are judged on these same examples, with no margin for chance:
  `comparisons.fastest_as_good` has one.

  Args:
    one: Points that are looked at together.

  Returns:
    Their rows, without models alone and oracles; None where it is not known how
    good the verifier alone is.
  """
  frame = one.frame
  levels = frame[frame.method == reference_points.VERIFIER].quality.dropna()
  if levels.empty:
    return None
  drafting = frame[
    ~frame.method.isin(reference_points.BASELINES) & ~frame.oracle
  ]
  fit = drafting[drafting.quality >= levels.iloc[0]]
  fit = fit[fit.relative_latency.notna()]
  return fit.sort_values('relative_latency', kind='stable')


def best_points(summary: pd.DataFrame) -> pd.DataFrame:
  """The best point of each variant, beside the two models alone.

  It is the first of `no_worse` that is of this variant: where gamma was varied,
  points have the gamma that makes them fastest, as on the page. A variant that
  does not reach the verifier's quality, or whose quality nobody knows, has the
  fastest of its best points. Oracles are left out: theirs is no latency that
  anybody could have.

  Args:
    summary: A row per point of one sweep, from `metrics.summarise`.

  Returns:
    Rows of the summary, with their `variant`, by task and then in the order of
    the sweep.
  """
  frame = summary.assign(variant=metrics.variants(summary), run='')
  places = []
  for one in slice_summary(frame):
    fit = no_worse(one)
    shown = one.frame[~one.frame.oracle]
    for variant, points in shown.groupby('variant', sort=False):
      good = points.iloc[:0] if fit is None else fit[fit.variant == variant]
      if good.empty:
        good = points.sort_values(
          ['quality', 'relative_latency'], ascending=[False, True]
        )
      places.append(good.index[0])
  return frame.loc[places].drop(columns='run')
