"""What a run reports: functions of the records of one point.

Rates are ratios of totals: counts are summed over the point's records before
they are divided, so a long answer weighs more than a short one, as it does on
the clock. A ratio whose denominator is zero is nan. Examples that failed are
counted, and are in nothing else: no answer is no wrong answer.

To add a metric, write a function of a list of records and add it to METRICS;
`summarize` then has a column of that name.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pydantic

from cascades.untrusted import bounded
from cascades.untrusted.schema import Positive, Schema
from cascades.verification_config import SEQUENTIAL
from experiments.records import Record, variant
from experiments.records.stats import (
  bootstrap_means,
  bootstrap_sums_interval,
)
from experiments.tasks import TASKS

Metric = Callable[[Sequence[Record]], float]

# What tells the curves of a task apart.
CURVE_COLUMNS = [
  'method',
  'verification',
  'gate',
  'bonus_from',
  'drafts',
  'schedule',
  'cap',
]
# What tells points apart, in the order of the summary.
_POINT = [
  'task',
  'method',
  'lenience',
  'gamma',
  *CURVE_COLUMNS[1:],
  'temperature',
]


def _ratio(numerator: float, denominator: float) -> float:
  return numerator / denominator if denominator else math.nan


def _total(records: Sequence[Record], field: str) -> float:
  return sum(getattr(r, field) for r in records)


def quality(records: Sequence[Record]) -> float:
  """Mean of the task's own metric over examples.

  A task whose quality is one of all answers together, such as BLEU, says how
  it is made of the sums of their scores: there it is no mean.
  """
  corpus = _corpus(records)
  if corpus:
    return corpus(_addends(records).sum(0))
  return _ratio(_total(records, 'quality'), len(records))


def _quality_intervals(
  groups: Sequence[Sequence[Record]],
) -> list[tuple[float, float]]:
  """95 % bootstrap intervals of `quality`, over examples.

  Those of the same examples share the draws.
  """
  found = [(math.nan, math.nan)] * len(groups)
  alike: dict[tuple, list[int]] = {}
  for i, group in enumerate(groups):
    corpus = _corpus(group)
    if corpus:
      found[i] = bootstrap_sums_interval(_addends(group), corpus)
    else:
      alike.setdefault(tuple(r.id for r in group), []).append(i)
  for places in alike.values():
    values = [[r.quality for r in groups[i]] for i in places]
    ends = bootstrap_means(np.array(values, dtype=np.float64).T)
    for i, low, high in zip(places, *ends, strict=True):
      found[i] = float(low), float(high)
  return found


def _corpus(
  records: Sequence[Record],
) -> Callable[[Sequence[float]], float] | None:
  """Quality from the sums of `_addends`; None where it is a mean."""
  # A task of somebody's own need not be registered.
  task = TASKS.get(records[0].task, None) if records else None
  if task is None or task.corpus is None:
    return None
  names = list(records[0].scores)
  return lambda sums: task.corpus(dict(zip(names, sums, strict=True)))


def _addends(records: Sequence[Record]) -> np.ndarray:
  """Scores of each record, [n, scores]."""
  names = records[0].scores
  return np.array([[r.scores[name] for name in names] for r in records])


def acceptance_rate(records: Sequence[Record]) -> float:
  """Drafted tokens kept, of those that verification examined."""
  return _ratio(_total(records, 'accepted'), _total(records, 'examined'))


def rejection_rate(records: Sequence[Record]) -> float:
  """Drafted tokens turned down, of those that verification examined."""
  examined = _total(records, 'examined')
  return _ratio(examined - _total(records, 'accepted'), examined)


def deferral_rate(records: Sequence[Record]) -> float:
  """Examined positions where the rule defers; nan if there is no rule."""
  if any(r.deferred is None for r in records):
    return math.nan
  return _ratio(_total(records, 'deferred'), _total(records, 'examined'))


def block_efficiency(records: Sequence[Record]) -> float:
  """Emitted tokens per verifier call, 1 to gamma + 1.

  More where the drafter needs no verifier to go on, as in the cascades that
  speculative ones are compared with.
  """
  return _ratio(_total(records, 'emitted'), _total(records, 'verifier_calls'))


def verifier_calls_per_token(records: Sequence[Record]) -> float:
  """Forward passes of the verifier per emitted token."""
  return _ratio(_total(records, 'verifier_calls'), _total(records, 'emitted'))


def drafter_calls_per_token(records: Sequence[Record]) -> float:
  """Forward passes of the drafter per emitted token."""
  return _ratio(_total(records, 'drafter_calls'), _total(records, 'emitted'))


def mean_output_tokens(records: Sequence[Record]) -> float:
  """Emitted tokens per example, end-of-sequence included."""
  return _ratio(_total(records, 'emitted'), len(records))


def unended_rate(records: Sequence[Record]) -> float:
  """Answers that the limit of their length cut off, of all."""
  return _ratio(sum(not r.ended for r in records), len(records))


METRICS: dict[str, Metric] = {
  'quality': quality,
  'acceptance_rate': acceptance_rate,
  'rejection_rate': rejection_rate,
  'deferral_rate': deferral_rate,
  'block_efficiency': block_efficiency,
  'verifier_calls_per_token': verifier_calls_per_token,
  'drafter_calls_per_token': drafter_calls_per_token,
  'mean_output_tokens': mean_output_tokens,
  'unended_rate': unended_rate,
}


# JSON has only strings for keys.
_Table = dict[Annotated[str, pydantic.Field(pattern='^[0-9]{1,6}$')], Positive]


class _CostFields(Schema):
  """What a file says of unit costs."""

  model_config = pydantic.ConfigDict(extra='forbid')
  verifier_token_s: Positive
  drafter_token_s: Positive
  verify_s: _Table
  drafts_s: _Table = pydantic.Field(default_factory=dict)


class _RangeFields(Schema):
  """What a file says of one measurement."""

  low: dict[str, Any]
  high: dict[str, Any]


class _MeasurementFields(Schema):
  """What a costs.json says."""

  times: Annotated[list[_RangeFields], pydantic.Field(min_length=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
  """Measured unit costs, in seconds for one sequence: what the loop takes.

  Attributes:
    verifier_token_s: A token that the verifier decodes alone.
    drafter_token_s: A token that the drafter decodes alone; where it is no
      model, its share of a proposal.
    verify_s: By gamma, a strict block but for its drafter's calls: the
      verifier's call, and verification; of several drafts, by all of their
      tokens.
    drafts_s: By drafts per block, where they are several, a token of each.
  """

  verifier_token_s: float
  drafter_token_s: float
  verify_s: dict[int, float]
  drafts_s: dict[int, float] = dataclasses.field(default_factory=dict)

  def drafter(self, drafts: int) -> float:
    """Seconds for one drafter call reading a token of each draft.

    Raises:
      ValueError: So many drafts were not measured.
    """
    if drafts == 1:
      return self.drafter_token_s
    if drafts not in self.drafts_s:
      raise ValueError(f'costs: no drafts_s for {drafts} drafts; measure it.')
    return self.drafts_s[drafts]

  def verify(self, gamma: int) -> float:
    """Seconds for one verifier call of a block of gamma drafted tokens.

    Raises:
      ValueError: That gamma was not measured.
    """
    if gamma == 0:
      return self.verifier_token_s
    if gamma not in self.verify_s:
      raise ValueError(f'costs: no verify_s for gamma {gamma}; measure it.')
    return self.verify_s[gamma]

  def verifier_s(self, calls: int, tokens: int, gamma: int) -> float:
    """Seconds for some verifier calls that read some tokens in all.

      calls * verifier_token_s
        + (tokens - calls) * (verify(gamma) - verifier_token_s) / gamma

    Each call costs what reading one token does, and each token more its share
    of what a block costs more: calls * verify(gamma) where, as in speculative
    decoding, each call reads gamma + 1 tokens. At gamma 0 a call reads one.

    Raises:
      ValueError: That gamma was not measured.
    """
    seconds = calls * self.verifier_token_s
    if gamma:
      more = self.verify(gamma) - self.verifier_token_s
      seconds += (tokens - calls) * more / gamma
    return seconds

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> 'Costs':
    """Unit costs from what a JSON file says of them.

    Raises:
      ValueError: A field is missing, unknown or not a positive number.
    """
    said = dict(_CostFields.check(fields, 'costs', 'measure them again'))
    tables = {
      name: {int(k): s for k, s in said[name].items()}
      for name in ('verify_s', 'drafts_s')
    }
    return cls(**said | tables)

  def units(self) -> dict[str, float]:
    """Every cost, in seconds, by what it is of."""
    return {
      "the verifier's token": self.verifier_token_s,
      "the drafter's token": self.drafter_token_s,
      **{f'a block of {k} drafts': s for k, s in self.verify_s.items()},
      **{f'a token of {k} drafts': s for k, s in self.drafts_s.items()},
    }


@dataclasses.dataclass(frozen=True)
class CostRange:
  """How unit costs lay over the turns of one measurement.

  Attributes:
    low: Their lowest tenth: what a call takes when nothing else runs.
    high: Their highest tenth.
  """

  low: Costs
  high: Costs


@dataclasses.dataclass(frozen=True)
class CostMeasurements:
  """Unit costs as they were measured, some times in the course of a run.

  Attributes:
    times: From the first measurement to the last.
  """

  times: tuple[CostRange, ...]

  @property
  def costs(self) -> Costs:
    """Of each cost the lower one, of all times."""
    lows = [spread.low for spread in self.times]

    def least(table: str) -> dict[int, float]:
      tables = [getattr(low, table) for low in lows]
      return {key: min(t[key] for t in tables) for key in tables[0]}

    return Costs(
      verifier_token_s=min(low.verifier_token_s for low in lows),
      drafter_token_s=min(low.drafter_token_s for low in lows),
      verify_s=least('verify_s'),
      drafts_s=least('drafts_s'),
    )

  def drift(self) -> tuple[str, float]:
    """What changed most between the first time and the last, and how much.

    A cost is taken over the verifier's for one token, as in the modelled
    latency; what makes everything slower in proportion is no change.

    Returns:
      The name of a unit, and the last ratio over the first.
    """
    first, last = (
      {name: s / c.verifier_token_s for name, s in c.units().items()}
      for c in (self.times[0].low, self.times[-1].low)
    )
    ratios = {name: last[name] / first[name] for name in first}
    return max(ratios.items(), key=lambda item: abs(math.log(item[1])))

  def to_json(self) -> str:
    """The text of a `costs.json`."""
    return json.dumps(dataclasses.asdict(self), indent=2) + '\n'

  @classmethod
  def from_json(cls, text: str | bytes) -> 'CostMeasurements':
    """Reads the text of a `costs.json`, or of one without a spread.

    Raises:
      ValueError: A field is missing, unknown or not a positive number.
    """
    advice = 'measure them again'
    try:
      fields = bounded.parse_json(text)
    except ValueError as e:
      raise ValueError(f'costs: {e}; {advice}.') from None
    if isinstance(fields, dict) and 'times' not in fields:
      fields = {'times': [{'low': fields, 'high': fields}]}
    said = _MeasurementFields.check(fields, 'costs', advice)
    times = tuple(
      CostRange(Costs.from_dict(time.low), Costs.from_dict(time.high))
      for time in said.times
    )
    names = [set(c.units()) for t in times for c in (t.low, t.high)]
    if not names or any(found != names[0] for found in names):
      raise ValueError('costs: not the same were measured each time.')
    return cls(times)


def modelled_s(r: Record, costs: Costs) -> tuple[float, float]:
  """Modelled seconds of an answer: of the drafter's calls, the verifier's.

  Raises:
    ValueError: `costs` has no entry for its gamma.
  """
  drafted = _drafted_per_call(r)
  if r.verification == SEQUENTIAL and r.gamma == 1 and costs.verify_s:
    # It has no gamma of its own, and reads what was written up to a deferral:
    # a token's share of the longest block is nearest to its cost.
    drafted = max(costs.verify_s)
  return (
    r.drafter_calls * costs.drafter(r.drafts),
    costs.verifier_s(r.verifier_calls, r.verifier_tokens, drafted),
  )


def relative_latency(records: Sequence[Record], costs: Costs) -> float:
  """Modelled time per emitted token, the verifier alone being 1.

  Counted calls times measured unit costs:

    (Costs.verifier_s + drafter_calls * Costs.drafter)
      / emitted / verifier_token_s

  The drafter alone is a point with no verifier calls. Prefill is left out on
  both sides.

  Raises:
    ValueError: `costs` has no entry for a record's gamma.
  """
  return _ratio(
    sum(latency(r, costs) for r in records), _total(records, 'emitted')
  )


def latency(r: Record, costs: Costs) -> float:
  """Modelled time of an answer, the verifier's for one token being 1.

  Raises:
    ValueError: `costs` has no entry for the record's gamma.
  """
  return sum(modelled_s(r, costs)) / costs.verifier_token_s


def _drafted_per_call(r: Record) -> int:
  """Drafted tokens that a call of the verifier reads, in a whole block."""
  # Of one draft it may read less, where there is none.
  if r.drafts == 1 or not r.verifier_calls:
    return r.gamma
  return r.verifier_tokens // r.verifier_calls - 1


def summarize(
  records: Iterable[Record],
  costs: Costs,
) -> pd.DataFrame:
  """A row per point, in order of first appearance.

  Args:
    records: Those of any number of points, in any order.
    costs: Measured unit costs.

  Returns:
    Columns: task, method, lenience, gamma, verification, gate, bonus_from,
    drafts, schedule, cap, temperature, n (of answers), failed (examples without
    one), quality, quality_low, quality_high (95 % bootstrap over examples),
    then METRICS, relative_latency before mean_output_tokens, and wall_s: time
    on the clock in seconds, reported beside the modelled latency and never
    merged with it.
  """
  points: dict[tuple, list[Record]] = {}
  for record in records:
    points.setdefault(record.point, []).append(record)
  groups = [
    [r for r in everything if r.failure is None]
    for everything in points.values()
  ]
  rows = []
  for everything, group, (low, high) in zip(
    points.values(), groups, _quality_intervals(groups), strict=True
  ):
    first = everything[0]
    rows.append(
      {
        **{name: getattr(first, name) for name in _POINT},
        'n': len(group),
        'failed': len(everything) - len(group),
        'quality': quality(group),
        'quality_low': low,
        'quality_high': high,
      }
      | {name: metric(group) for name, metric in METRICS.items()}
      | {
        'relative_latency': relative_latency(group, costs),
        'wall_s': _total(group, 'wall_s'),
      }
    )
  return pd.DataFrame(rows, columns=summary_columns())


def variants(frame: pd.DataFrame) -> pd.Series:
  """`Record.variant` of each row of a summary."""
  names = [
    variant(*row) for row in frame[CURVE_COLUMNS].itertuples(index=False)
  ]
  return pd.Series(names, frame.index, dtype=object)


def summary_columns() -> list[str]:
  """Columns of the summary, in order."""
  names = [*METRICS, 'wall_s']
  after = names.index('quality') + 1
  names[after:after] = ['quality_low', 'quality_high']
  names.insert(names.index('mean_output_tokens'), 'relative_latency')
  return [*_POINT, 'n', 'failed', *names]
