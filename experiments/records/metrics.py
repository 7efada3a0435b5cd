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
from experiments.records.stats import bootstrap_sums_interval, mean_interval
from experiments.records.unit_costs import Costs
from experiments.tasks import quality_metric

# The verification of a cascade that does not speculate and has no blocks.
SEQUENTIAL = 'sequential'
# Columns that distinguish the curves of a task.
CURVE_COLUMNS = [
  'method',
  'verification',
  'gate',
  'bonus_from',
  'drafts',
]
# Columns that distinguish points, in the order of the summary.
_POINT_COLUMNS = [
  'task',
  'method',
  'lenience',
  'gamma',
  *CURVE_COLUMNS[1:],
  'temperature',
]


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
  corpus = _corpus(records)
  if corpus:
    return corpus(_scores(records).sum(0))
  return _ratio(_total(records, 'quality'), len(records))


def _quality_interval(records: Sequence[Record]) -> tuple[float, float]:
  """Returns the 95 % interval of `quality` over examples; see `stats`."""
  corpus = _corpus(records)
  if corpus:
    return bootstrap_sums_interval(_scores(records), corpus)
  values = np.array([[r.quality] for r in records], dtype=np.float64)
  if not len(records) or np.isnan(values).any():
    return math.nan, math.nan
  metric = quality_metric(records[0].task)
  scale = metric.scale if metric else 1.0
  low, high = mean_interval(np.clip(values / scale, 0, 1))
  return scale * float(low[0]), scale * float(high[0])


def _corpus(
  records: Sequence[Record],
) -> Callable[[Sequence[float]], float] | None:
  """Returns the function of sums of scores that is the quality, if any."""
  metric = quality_metric(records[0].task) if records else None
  corpus = metric and metric.corpus
  if corpus is None:
    return None
  names = list(records[0].scores)
  return lambda sums: corpus(dict(zip(names, sums, strict=True)))


def _scores(records: Sequence[Record]) -> np.ndarray:
  """Returns the scores of each record, [n, scores]."""
  names = records[0].scores
  return np.array([[r.scores[name] for name in names] for r in records])


def acceptance_rate(records: Sequence[Record]) -> float:
  """Returns accepted over examined drafted tokens."""
  return _ratio(_total(records, 'accepted'), _total(records, 'examined'))


def rejection_rate(records: Sequence[Record]) -> float:
  """Returns rejected over examined drafted tokens."""
  examined = _total(records, 'examined')
  return _ratio(examined - _total(records, 'accepted'), examined)


def deferral_rate(records: Sequence[Record]) -> float:
  """Returns deferred over examined positions; nan without a deferral rule."""
  if any(r.deferred is None for r in records):
    return math.nan
  return _ratio(_total(records, 'deferred'), _total(records, 'examined'))


def block_efficiency(records: Sequence[Record]) -> float:
  """Returns emitted tokens per verifier call, 1 to gamma + 1.

  The value is higher for baseline cascades whose drafter continues without the
  verifier.
  """
  return _ratio(_total(records, 'emitted'), _total(records, 'verifier_calls'))


def verifier_calls_per_token(records: Sequence[Record]) -> float:
  """Returns forward passes of the verifier per emitted token."""
  return _ratio(_total(records, 'verifier_calls'), _total(records, 'emitted'))


def drafter_calls_per_token(records: Sequence[Record]) -> float:
  """Returns forward passes of the drafter per emitted token."""
  return _ratio(_total(records, 'drafter_calls'), _total(records, 'emitted'))


def mean_output_tokens(records: Sequence[Record]) -> float:
  """Returns emitted tokens per example, end-of-sequence included."""
  return _ratio(_total(records, 'emitted'), len(records))


def unended_rate(records: Sequence[Record]) -> float:
  """Returns the share of answers that the length limit cut off."""
  return _ratio(sum(not r.ended for r in records), len(records))


# Numbers of a point's records without failures, columns of the summary.
POINT_METRICS: dict[str, Callable[[Sequence[Record]], float]] = dict(
  quality=quality,
  acceptance_rate=acceptance_rate,
  rejection_rate=rejection_rate,
  deferral_rate=deferral_rate,
  block_efficiency=block_efficiency,
  verifier_calls_per_token=verifier_calls_per_token,
  drafter_calls_per_token=drafter_calls_per_token,
  mean_output_tokens=mean_output_tokens,
  unended_rate=unended_rate,
)


def modelled_s(r: Record, costs: Costs) -> tuple[float, float]:
  """Returns the modelled seconds of an answer."""
  drafted = _drafted_per_call(r)
  if r.verification == SEQUENTIAL and costs.verify_s:
    # A sequential cascade has no gamma: the verifier reads all tokens up to a
    # deferral. Their cost is closest to their share of the longest block.
    drafted = max(costs.verify_s)
  return (
    r.drafter_calls * costs.drafter(r.drafts),
    costs.verifier_s(r.verifier_calls, r.verifier_tokens, drafted),
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
  return sum(modelled_s(r, costs)) / costs.verifier_token_s


def _drafted_per_call(r: Record) -> int:
  """Returns the drafted tokens that a verifier call of a full block reads."""
  # With a single draft, calls of empty blocks would lower the mean.
  if r.drafts == 1 or not r.verifier_calls:
    return r.gamma
  return r.verifier_tokens // r.verifier_calls - 1


def on_common_examples(records: Iterable[Record]) -> list[Record]:
  """Selects the records of examples that all points of a task have.

  Points are compared on equal examples, although curves of a sweep may decode
  different numbers of them.
  """
  records = list(records)
  ids: dict[str, dict[tuple, set[str]]] = {}
  for r in records:
    ids.setdefault(r.task, {}).setdefault(r.point, set()).add(r.id)
  common = {task: set.intersection(*x.values()) for task, x in ids.items()}
  return [r for r in records if r.id in common[r.task] or not common[r.task]]


def without_speculation(records: Iterable[Record]) -> list[Record]:
  """Makes the records of cascades that do not speculate.

  Such a cascade drafts until its rule defers; then the verifier reads up to
  there and decodes a token. Tokens and deferrals have the same law as with
  `token` verification at any gamma, so the counts are those of the points with
  the smallest gamma. Their time is not measured.
  """
  points: dict[tuple, list[Record]] = {}
  for r in records:
    points.setdefault(r.point, []).append(r)
  smallest: dict[tuple, list[Record]] = {}
  for point in points.values():
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


def summarize(records: Iterable[Record], costs: Costs) -> pd.DataFrame:
  """Computes a row per point, in order of first appearance."""
  points: dict[tuple, list[Record]] = {}
  for record in records:
    points.setdefault(record.point, []).append(record)
  rows = []
  for point in points.values():
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
  return pd.DataFrame(rows, columns=summary_columns())


def variants(summary: pd.DataFrame) -> pd.Series:
  """Returns `Record.variant` of each row of a summary."""
  names = 'method', *OPTIONS
  values = [
    variant(**dict(zip(names, row, strict=True)))
    for row in summary[CURVE_COLUMNS].itertuples(index=False)
  ]
  return pd.Series(values, summary.index, dtype=object)


def summary_columns() -> list[str]:
  """Returns the columns that every summary has, in order."""
  names = [*POINT_METRICS]
  start = names.index('quality') + 1
  names[start:start] = ['quality_low', 'quality_high']
  names.insert(names.index('mean_output_tokens'), 'relative_latency')
  return [*_POINT_COLUMNS, 'n', 'failed', *names, 'wall_s']
