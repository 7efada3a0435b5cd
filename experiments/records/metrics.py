"""Metrics of a point, computed from its records.

Rates are ratios of totals: counts are summed over the point's records before
they are divided, so that a long answer weighs more than a short one, as it does
on the clock. A ratio whose denominator is zero is nan. Examples that failed are
counted, and are in no other metric: a missing answer is not a wrong answer.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from experiments.records import OPTIONS, Record, variant
from experiments.records.stats import bootstrap, mean_interval
from experiments.records.unit_costs import Costs
from experiments.tasks import quality_metric

Metric = Callable[[Sequence[Record]], float]
# The verification of a cascade that does not speculate and has no blocks.
SEQUENTIAL = 'sequential'
# Columns that distinguish the curves of a task.
CURVE_COLUMNS = 'method verification gate bonus_from drafts draft'.split()
# Columns that distinguish points, in the order of the summary.
_POINT_COLUMNS = 'task method lenience gamma'.split()
_POINT_COLUMNS += [*CURVE_COLUMNS[1:], 'temperature']


def _ratio(numerator: float, denominator: float) -> float:
  """Divides; returns nan if the denominator is 0."""
  return numerator / denominator if denominator else math.nan


def _total(records: Sequence[Record], field: str) -> float:
  """Returns the sum of a field over records."""
  return sum(getattr(r, field) for r in records)


def quality(records: Sequence[Record]) -> float:
  """Returns the task's quality: the mean of its quality score.

  A task whose quality is not a mean, such as BLEU, computes it from the sums
  of the scores over all examples.
  """
  if corpus := _corpus(records):
    function, scores = corpus
    return function(scores.sum(0))
  return _ratio(_total(records, 'quality'), len(records))


def _quality_interval(records: Sequence[Record]) -> tuple[float, float]:
  """Returns the 95 % interval of `quality` over examples; see `stats`."""
  scale, values = 1.0, np.array([[r.quality] for r in records], np.float64)
  if corpus := _corpus(records):
    function, scores = corpus
    low, high = bootstrap(
      scores, lambda sums: np.apply_along_axis(function, -1, sums)[..., None]
    )
  elif not len(records) or np.isnan(values).any():
    return math.nan, math.nan
  else:
    metric = quality_metric(records[0].task)
    scale = metric.scale if metric else 1.0
    low, high = mean_interval(np.clip(values / scale, 0, 1))
  return scale * float(low[0]), scale * float(high[0])


def _corpus(
  records: Sequence[Record],
) -> tuple[Callable[[Sequence[float]], float], np.ndarray] | None:
  """Returns the function of sums that is the quality, and [n, scores]."""
  metric = quality_metric(records[0].task) if records else None
  if metric is None or metric.corpus is None:
    return None
  corpus, names = metric.corpus, list(records[0].scores)
  scores = np.array([[r.scores[name] for name in names] for r in records])
  return lambda sums: corpus(dict(zip(names, sums, strict=True))), scores


def _ratio_of(numerator: str, denominator: str) -> Metric:
  """Returns the ratio of the totals of two fields; nan if one is unknown."""

  def metric(records: Sequence[Record]) -> float:
    if any(getattr(r, numerator) is None for r in records):
      return math.nan
    return _ratio(_total(records, numerator), _total(records, denominator))

  return metric


# Numbers of a point's records without failures, columns of the summary. The
# block efficiency, emitted tokens per verifier call, is 1 to gamma + 1; it is
# higher for baseline cascades whose drafter continues without the verifier.
POINT_METRICS: dict[str, Metric] = dict(
  quality=quality,
  acceptance_rate=_ratio_of('accepted', 'examined'),
  rejection_rate=lambda records: _ratio(
    _total(records, 'examined') - _total(records, 'accepted'),
    _total(records, 'examined'),
  ),
  # Of examined positions; nan without a deferral rule.
  deferral_rate=_ratio_of('deferred', 'examined'),
  block_efficiency=_ratio_of('emitted', 'verifier_calls'),
  verifier_calls_per_token=_ratio_of('verifier_calls', 'emitted'),
  drafter_calls_per_token=_ratio_of('drafter_calls', 'emitted'),
  mean_output_tokens=lambda records: _ratio(
    _total(records, 'emitted'), len(records)
  ),
  # The share of answers that the length limit cut off.
  unended_rate=lambda records: _ratio(
    sum(not r.ended for r in records), len(records)
  ),
)


def relative_latency(records: Sequence[Record], costs: Costs) -> float:
  """Returns the modelled time per emitted token over the verifier's.

  The model multiplies counted calls by measured unit costs:

    (Costs.verifier_s + drafter_calls * Costs.drafter)
      / emitted / verifier_token_s

  The drafter alone is a point without verifier calls. Prefill is excluded on
  both sides.
  """
  return _ratio(
    sum(latency(r, costs) for r in records), _total(records, 'emitted')
  )


def latency(r: Record, costs: Costs) -> float:
  """Returns an answer's modelled time, in times of a verifier token."""
  # The drafted tokens that a verifier call of a full block reads. With a single
  # draft, calls of empty blocks would lower the mean.
  drafted = r.gamma
  if r.drafts > 1 and r.verifier_calls:
    drafted = r.verifier_tokens // r.verifier_calls - 1
  if r.verification == SEQUENTIAL and costs.verify_s:
    # A sequential cascade has no gamma: the verifier reads all tokens up to a
    # deferral. Their cost is closest to their share of the longest block.
    drafted = max(costs.verify_s)
  verifier = costs.verifier_s(r.verifier_calls, r.verifier_tokens, drafted)
  seconds = r.drafter_calls * costs.drafter(r.drafts) + verifier
  return seconds / costs.verifier_token_s


def by_point(records: Iterable[Record]) -> dict[tuple, list[Record]]:
  """Returns the records of each point, in order of first appearance."""
  points: dict[tuple, list[Record]] = {}
  for r in records:
    points.setdefault(r.point, []).append(r)
  return points


def on_common_examples(records: Iterable[Record]) -> list[Record]:
  """Selects the records of examples that all points of a task have.

  Points are compared on equal examples, although curves of a sweep may decode
  different numbers of them.
  """
  records = list(records)
  ids: dict[str, list[set[str]]] = {}
  for point in by_point(records).values():
    ids.setdefault(point[0].task, []).append({r.id for r in point})
  common = {task: set.intersection(*x) for task, x in ids.items()}
  return [r for r in records if r.id in common[r.task] or not common[r.task]]


def without_speculation(records: Iterable[Record]) -> list[Record]:
  """Makes the records of cascades that do not speculate.

  Such a cascade drafts until its rule defers; then the verifier reads up to
  there and decodes a token. Tokens and deferrals have the same law as with
  `token` verification at any gamma, so the counts are those of the points with
  the smallest gamma. Their time is not measured.
  """
  smallest: dict[tuple, list[Record]] = {}
  for point in by_point(records).values():
    if any(r.deferrals is not None for r in point):
      r = point[0]
      key = r.task, r.method, r.lenience, r.gate, r.temperature
      if r.gamma <= smallest.get(key, point)[0].gamma:
        smallest[key] = point
  return [
    dataclasses.replace(
      r,
      verification=SEQUENTIAL,
      gamma=1,
      drafted=r.emitted,
      examined=r.emitted,
      accepted=r.emitted - (r.deferrals or 0),
      deferred=r.deferrals,
      deferrals=None,
      residual=r.deferrals or 0,
      bonus=0,
      verifier_calls=r.deferrals or 0,
      verifier_tokens=r.last_deferral or 0,
      drafter_calls=r.emitted,
      wall_s=math.nan,
    )
    for point in smallest.values()
    for r in point
  ]


# Columns of every summary.
_NAMES = [*POINT_METRICS]
SUMMARY_COLUMNS = [
  *(*_POINT_COLUMNS, 'n', 'failed', 'quality', 'quality_low', 'quality_high'),
  *(*_NAMES[1:-2], 'relative_latency', *_NAMES[-2:], 'wall_s'),
]


def summarize(records: Iterable[Record], costs: Costs) -> pd.DataFrame:
  """Computes a row per point, in order of first appearance."""
  rows = []
  for point in by_point(records).values():
    group = [r for r in point if r.failure is None]
    low, high = _quality_interval(group)
    rows.append(
      {name: getattr(point[0], name) for name in _POINT_COLUMNS}
      | {'n': len(group), 'failed': len(point) - len(group)}
      | {name: metric(group) for name, metric in POINT_METRICS.items()}
      | {
        'quality_low': low,
        'quality_high': high,
        'relative_latency': relative_latency(group, costs),
        'wall_s': _total(group, 'wall_s'),
      }
    )
  return pd.DataFrame(rows, columns=SUMMARY_COLUMNS)


def variants(summary: pd.DataFrame) -> pd.Series:
  """Returns `Record.variant` of each row of a summary."""
  names = 'method', *OPTIONS
  values = [
    variant(**dict(zip(names, row, strict=True)))
    for row in summary[CURVE_COLUMNS].itertuples(index=False)
  ]
  return pd.Series(values, summary.index, dtype=object)
