"""Slices of the summary, and the best points of each slice.

A slice has the rows of one task, temperature and run, and of one gamma. If
gamma was varied, a further slice has each point at its fastest gamma.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points
from experiments.records import metrics

# Columns that are equal in all rows of a slice.
_SLICE_KEYS = ['task', 'temperature', 'run']


# The field `frame` is a frame, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class SummarySlice:
  """The rows of a summary that are shown together.

  Attributes:
    frame: A row per point, curves without a gamma included: the columns of
      `runs.summary`, with gamma 0 for points without blocks, oracle (True if
      the cost leaves out verifier calls that the rule needs), and
      relative_length (mean output length over that of the verifier alone).
    task: Name of the task.
    temperature: Temperature of both models; None if the whole summary has one.
    run: Name of the workdir; empty if it need not be named.
    gamma: The gamma of all rows; None if the whole summary has one.
    gamma_tuned: True if each point is at its fastest gamma.
    by_gamma: Slices of the same rows at each gamma; empty unless gamma_tuned.
  """

  frame: pd.DataFrame
  task: str
  temperature: float | None = None
  run: str = ''
  gamma: int | None = None
  gamma_tuned: bool = False
  by_gamma: tuple['SummarySlice', ...] = ()

  @property
  def has_quality(self) -> bool:
    """True if the quality of any point is known."""
    return bool(self.frame.quality.notna().any())


def slice_summary(frame: pd.DataFrame) -> Iterator[SummarySlice]:
  """Yields a slice per task, temperature and run, at the fastest gammas."""
  # The models alone and cascades of whole answers have no gamma.
  gamma_free = frame.groupby('variant').gamma.transform('max') == 0
  temperatures, gammas = (
    frame[~gamma_free][column].nunique() > 1
    for column in ('temperature', 'gamma')
  )
  groups = frame.groupby(_SLICE_KEYS, sort=False)
  for (task, temperature, run), part in groups:
    keys = {
      'task': task,
      'temperature': temperature if temperatures else None,
      'run': run,
    }
    no_gamma = gamma_free[part.index]
    by_gamma = [
      SummarySlice(
        _with_derived(part[no_gamma | (part.gamma == gamma)]),
        **keys,
        gamma=gamma if gammas else None,
      )
      for gamma in part[~no_gamma].gamma.unique()
    ]
    if len(by_gamma) > 1:
      best = _by_curve(at_fastest_gamma(part), part.variant.unique().tolist())
      yield SummarySlice(
        _with_derived(best), **keys, gamma_tuned=True, by_gamma=tuple(by_gamma)
      )
    else:
      yield from by_gamma or [SummarySlice(_with_derived(part), **keys)]


def at_fastest_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects each point at its fastest gamma, judged on the same examples.

  The emitted tokens have the same law at any gamma, so that gamma changes only
  the latency, and quality differs by sampling noise. With bonus tokens from the
  verifier the law depends on gamma, and each gamma is a point of its own.
  """
  keys = [*_SLICE_KEYS, 'variant']
  rows = comparisons.with_blocks(frame, keys)
  rows = rows.assign(law=rows.gamma.where(rows.bonus_from == 'verifier', 0))
  rows = rows.sort_values('relative_latency', kind='stable')
  rows = rows.drop_duplicates([*keys, 'lenience', 'law'])
  return frame.loc[rows.index.sort_values()]


def _by_curve(frame: pd.DataFrame, variants: Sequence[str]) -> pd.DataFrame:
  """Sorts rows by the order of their variants, then by lenience."""
  ranks = {v: i for i, v in enumerate(variants)}
  ranked = frame.assign(rank=frame.variant.map(ranks))
  return ranked.sort_values(['rank', 'lenience'], kind='stable')


def _with_derived(frame: pd.DataFrame) -> pd.DataFrame:
  """Adds the columns `oracle` and `relative_length` to the rows of a slice."""
  verifier = frame[frame.variant == reference_points.VERIFIER]
  lengths = verifier.mean_output_tokens
  level = float(lengths.iloc[0]) if len(lengths) else math.nan
  oracle = list(
    map(reference_points.is_oracle, frame.method, frame.verification)
  )
  return frame.assign(
    oracle=pd.Series(oracle, frame.index, dtype=bool),
    relative_length=frame.mean_output_tokens / level,
  )


def no_worse(part: SummarySlice) -> pd.DataFrame | None:
  """Selects points with the quality of the verifier alone.

  The criterion is that of `comparisons.fastest_as_good`.
  """
  frame = part.frame
  is_verifier = frame.method == reference_points.VERIFIER
  if frame[is_verifier].quality.isna().all():
    return None
  is_baseline = frame.method.isin(reference_points.BASELINES)
  candidates = frame[~is_baseline & ~frame.oracle]
  fit = candidates[candidates.as_good & candidates.relative_latency.notna()]
  return fit.sort_values('relative_latency', kind='stable')


def best_points(summary: pd.DataFrame, points: Points) -> pd.DataFrame:
  """Selects the best point of each variant, and the two models alone.

  The best point is the fastest of `no_worse`, at the gamma that makes it
  fastest, as on the page. If no point of a variant reaches the verifier's
  quality, or if no quality is known, it is the fastest of the points with the
  highest quality. Oracles are left out, because no method reaches their
  latency.
  """
  frame = summary.assign(variant=metrics.variants(summary), run='')
  compared = comparisons.compare(points, AnalysisConfig())
  frame = comparisons.with_differences(frame, compared)
  indices = []
  for part in slice_summary(frame):
    fit = no_worse(part)
    possible = part.frame[~part.frame.oracle]
    for variant, rows in possible.groupby('variant', sort=False):
      good = rows.iloc[:0] if fit is None else fit[fit.variant == variant]
      if good.empty:
        good = rows.sort_values(
          ['quality', 'relative_latency'], ascending=[False, True]
        )
      indices.append(good.index[0])
  best = frame.loc[indices, [*summary.columns, 'variant']]
  return best.assign(at_quality=frame.as_good)


def unsolved(summary: pd.DataFrame) -> list[str]:
  """Returns a sentence for each task on which the verifier scores 0."""
  rows = summary[
    (summary.method == reference_points.VERIFIER) & (summary.quality == 0)
  ]
  return [
    f'{row.task}: the verifier scores 0.00 on {row.n} examples; look at the'
    ' prompts and the metric.'
    for row in rows.itertuples()
  ]
