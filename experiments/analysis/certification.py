"""The setting to use: the fastest certified one, or one that a config fixes.

A certified setting: the examples are halved by a hash of their ids
(`tasks.choosing`). On one half a setting is chosen, on the other reported, so
that the reported numbers are not those that it was chosen for.

The loss of an example is 1 less its quality, in [0, 1], a sentence's score for
BLEU and chrF. A setting is certified if its mean loss is above the verifier's
by at most `risk`, with probability at least 1 - `delta` for all certified
settings together. Each curve (a method with its options and a gamma) has an
equal share of delta (Bonferroni). Strict settings emit the verifier's law and
need no test. The speed-up has an interval and no guarantee.

A curve is tested by learn-then-test (Angelopoulos et al. 2021, arXiv
2110.01052): for each lenience the hypothesis "more than `risk` is lost" is
tested (`stats.p_value`), from the strictest lenience to the loosest, until the
first hypothesis that is not rejected. Such a fixed sequence needs no further
correction for the number of leniences, and the guarantee holds for any
distribution that the examples were drawn from.

A setting that was fixed beforehand is judged on all examples. It is shown to
pay if its modelled speed-ups over strict decoding and over the verifier alone
are above 1, and its quality is not below the verifier's by more than `margin`;
all by intervals of 95 % that are paired over the examples.
"""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cascades import methods
from experiments import records
from experiments.analysis import runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.records import metrics, stats, unit_costs
from experiments.records.stats import p_value
from experiments.tasks import choosing, half_of, quality_metric

# Most examples of an estimate of how many would be needed.
_MOST_NEEDED = 100_000
# Level of one end of an interval of 95 %.
_ONE_SIDED = 0.025


class EmptyHalfError(ValueError):
  """No examples to choose a setting on, or none to report it on."""


class Setting(NamedTuple):
  """A curve at one of its leniences."""

  method: str
  variant: str
  gamma: int
  lenience: float
  is_strict: bool

  @property
  def curve(self) -> tuple[str, int]:
    """The curve of the setting."""
    return self.variant, self.gamma

  def __str__(self) -> str:
    if self.method == runs.VERIFIER:
      return 'the verifier alone'
    lenience = (
      '' if math.isnan(self.lenience) else f' at lenience {self.lenience:g},'
    )
    return f'{self.variant}{lenience} gamma {self.gamma}'


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
  """Answers of all settings to the examples that the verifier answered.

  The verifier alone is the first setting. The arrays are [settings, examples],
  and 0 where a setting has no answer: quality in [0, 1], nan without a metric;
  emitted tokens; modelled time, in verifier tokens.
  """

  settings: tuple[Setting, ...]
  # (task, id) of each example.
  ids: tuple[tuple[str, str], ...]
  quality: np.ndarray
  emitted: np.ndarray
  latency: np.ndarray

  def select(self, is_selected: np.ndarray) -> 'Answers':
    """Returns the answers to some examples, [examples] of bool."""
    return Answers(
      self.settings,
      ids=tuple(itertools.compress(self.ids, is_selected)),
      quality=self.quality[:, is_selected],
      emitted=self.emitted[:, is_selected],
      latency=self.latency[:, is_selected],
    )

  @property
  def unsolved(self) -> tuple[str, ...]:
    """The tasks on which the verifier scores 0 and can lose nothing."""
    best: dict[str, float] = {}
    for (task, _), quality in zip(self.ids, self.quality[0], strict=True):
      best[task] = max(quality, best.get(task, 0.0))
    return tuple(task for task, quality in best.items() if quality == 0)

  @property
  def has_quality(self) -> bool:
    """True if every answer has a quality."""
    return bool(np.isfinite(self.quality).all())

  def losses(self) -> np.ndarray:
    """Returns the loss above the verifier's, [settings, examples]."""
    return self.quality[0] - self.quality


def collect(
  decoded: Iterable[records.Record], costs: unit_costs.Costs
) -> Answers:
  """Collects the answers of the settings that a sampler can decode with.

  Cascades of whole answers and the drafter alone are left out, and examples
  that are not of all settings.
  """
  rows: dict[Setting, dict[tuple[str, str], records.Record]] = {}
  for record in decoded:
    if record.method not in methods.METHODS or record.method == runs.DRAFTER:
      continue
    rows.setdefault(setting_of(record), {})[record.task, record.id] = record
  verifiers = [x for x in rows if x.method == runs.VERIFIER]
  if not verifiers:
    raise ValueError(
      'decision: the verifier alone was not run; add verifier_only to the'
      ' sweep.'
    )
  settings = (verifiers[0], *(x for x in rows if x != verifiers[0]))
  common = set.intersection(*map(set, rows.values()))
  ids = tuple(
    key
    for key, x in rows[verifiers[0]].items()
    if x.failure is None and key in common
  )
  if not ids:
    raise EmptyHalfError(
      'decision: the verifier alone answered no example; read the field failure'
      ' in records/*.jsonl of the workdir.'
    )
  quality, emitted, latency = np.zeros((3, len(settings), len(ids)))
  for i, setting in enumerate(settings):
    for j, key in enumerate(ids):
      if (r := rows[setting][key]).failure is None:
        # Tasks without metrics of their own score in [0, 1], if at all.
        metric = quality_metric(r.task)
        share = min(1.0, r.quality / metric.scale) if metric else r.quality
        quality[i, j] = share
        emitted[i, j], latency[i, j] = r.emitted, metrics.latency(r, costs)
  return Answers(
    settings, ids, quality=quality, emitted=emitted, latency=latency
  )


def setting_of(record: records.Record) -> Setting:
  """Returns the setting of a record."""
  is_baseline = record.method == runs.VERIFIER
  # nan differs from itself and cannot be a key.
  lenience = math.nan if math.isnan(record.lenience) else record.lenience
  return Setting(
    method=record.method,
    variant=record.variant,
    gamma=0 if is_baseline else record.gamma,
    lenience=lenience,
    is_strict=runs.is_strict(record.method, lenience),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """A setting that was tried on the choosing half."""

  setting: Setting
  # Modelled speed over the verifier alone.
  speedup: float
  # Mean loss above the verifier's; nan without a metric.
  loss: float
  # p-value that more than the risk is lost, with the power of its share of
  # delta; 0 for a strict setting.
  p: float
  is_certified: bool


# A number with its interval: (mean, low, high).
Interval = tuple[float, float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """A setting against the verifier alone and against strict decoding."""

  # The setting that the numbers are of, and the one to use: another if a fixed
  # setting is not shown to pay.
  setting: Setting
  use: Setting
  # All settings that were tried, in the order of the sweep.
  trials: tuple[Trial, ...]
  reporting_examples: int
  loss: Interval
  speedup: Interval
  # None if there is no strict setting that drafts, or the setting is it.
  speedup_over_strict: Interval | None
  strict: Setting | None
  # Fewest examples that could certify the risk, or show the margin.
  needed_examples: int
  # The setting that would be used if the interval of its speed over the
  # verifier alone were above 1, with this speed.
  slow: tuple[Setting, Interval] | None = None
  # Tasks on which the verifier scores 0.
  unsolved: tuple[str, ...] = ()
  # 0 for a fixed setting.
  choosing_examples: int = 0
  # The share of delta of each curve, and the least risk that so many examples
  # could certify.
  delta_per_curve: float = 0.0
  least_risk: float = 0.0
  # Examples of the choosing half that would certify the fastest setting whose
  # loss there is below the risk, if it is not certified.
  estimate: tuple[Setting, int] | None = None
  # Of a fixed setting: it has the verifier's quality; it is also faster.
  keeps_quality: bool = False
  is_shown: bool = False


def decide(answers: Answers, config: AnalysisConfig) -> Verdict:
  """Chooses the fastest certified setting, and reports it."""
  names = [name for _, name in answers.ids]
  is_choosing = np.array(choosing(names))
  if len({*map(half_of, names)}) < 2:
    raise EmptyHalfError(
      f'decision: not made, because {len(answers.ids)} examples leave a half'
      " empty; give more examples, and no half as the config's split."
    )
  chosen_on, reported_on = map(answers.select, (is_choosing, ~is_choosing))
  share = config.delta / max(1, len(_curves(answers.settings)))
  trials = try_all(chosen_on, config, share)
  index = _fastest(trials, lambda x: x.is_certified)
  strict = _fastest(
    trials, lambda x: x.setting.is_strict and x.setting.gamma > 0
  )
  if answers.unsolved:
    index = 0
  compared, slow = _compare(reported_on, config, index, strict), None
  if index and not compared['speedup'][1] > 1:
    slow = compared['setting'], compared['speedup']
    compared = _compare(reported_on, config, 0, strict)
  n = int(is_choosing.sum())
  return Verdict(
    **compared,
    use=compared['setting'],
    slow=slow,
    unsolved=answers.unsolved,
    trials=tuple(trials),
    delta_per_curve=share,
    choosing_examples=n,
    least_risk=least_risk(n, share),
    needed_examples=needed(config.risk, share),
    estimate=_estimate(chosen_on, trials, config, share),
  )


def judge(
  answers: Answers, setting: Setting, strict: Setting, config: AnalysisConfig
) -> Verdict:
  """Judges a setting that no choice on these examples has led to."""
  index, strict_index = map(answers.settings.index, (setting, strict))
  compared = _compare(answers, config, index, strict_index)
  # None if strict decoding is compared with itself.
  faster = compared['speedup_over_strict'] or (1.0, 1.0, 1.0)
  compared['speedup_over_strict'] = faster
  of_strict = _speedup_over(answers, config, strict_index)
  is_slow, unsolved = not of_strict[1] > 1, answers.unsolved
  keeps_quality = setting.is_strict or compared['loss'][2] < config.margin
  is_faster = min(faster[1], compared['speedup'][1]) > 1
  is_shown = is_faster and keeps_quality and not unsolved
  lossless = np.array([x.is_strict for x in answers.settings])
  return Verdict(
    **compared,
    use=setting
    if is_shown
    else answers.settings[0]
    if is_slow or unsolved
    else strict,
    trials=tuple(
      _trials(answers, np.where(lossless, 0, math.nan), lossless | is_shown)
    ),
    needed_examples=_needed_for_margin(
      answers.quality[[0, index]], config.margin
    ),
    keeps_quality=keeps_quality,
    is_shown=is_shown,
    slow=(strict, of_strict) if is_slow else None,
    unsolved=unsolved,
  )


@functools.cache
def needed(risk: float, delta: float) -> int:
  """Returns the fewest examples for a guarantee, if no example has a loss."""
  return bisect.bisect_left(
    range(2**20), True, key=lambda n: p_value(np.zeros(n), risk, delta) <= delta
  )


def _needed_for_margin(quality: np.ndarray, margin: float) -> int:
  """Returns the fewest examples that can show a quality within the margin."""
  if not margin:
    return 0
  if not np.isin(quality, (0, 1)).all():
    return needed(margin, _ONE_SIDED)
  return bisect.bisect_left(
    range(100_000), True, lo=1, key=lambda n: stats.excludes(0, 0, n, -margin)
  )


def _compare(
  answers: Answers, config: AnalysisConfig, index: int, strict: int | None
) -> dict[str, Any]:
  """Compares a setting with the verifier alone and with strict decoding."""
  lost = 0.0, 0.0, 0.0
  if index:
    verifier, quality = answers.quality[[0, index]][..., None]
    (low,), (high,) = stats.paired_interval(verifier, quality)
    lost = float(answers.losses()[index].mean()), float(low), float(high)
  faster = None
  if strict not in (None, index):
    faster = _speedup_over(answers, config, index, over=strict)
  return dict(
    setting=answers.settings[index],
    reporting_examples=len(answers.ids),
    loss=lost,
    speedup=_speedup_over(answers, config, index),
    speedup_over_strict=faster,
    strict=None if strict is None else answers.settings[strict],
  )


def least_risk(n: int, delta: float) -> float:
  """Returns the least risk that n examples without a loss certify."""
  zeros, risks = np.zeros(n), (i / 1000 for i in range(1, 1000))
  return next((x for x in risks if p_value(zeros, x, delta) <= delta), 1.0)


def _curves(settings: Sequence[Setting]) -> dict[tuple[str, int], list[int]]:
  """Returns the settings to test of each curve, from the strictest on."""
  curves: dict[tuple[str, int], list[int]] = {}
  for i, setting in enumerate(settings):
    if not setting.is_strict:
      curves.setdefault(setting.curve, []).append(i)
  for indices in curves.values():
    strict = methods.METHODS[settings[indices[0]].method].strict
    # For some methods the largest lenience is strict.
    is_descending = strict is not None and strict > min(
      settings[i].lenience for i in indices
    )
    indices.sort(key=lambda i: settings[i].lenience, reverse=is_descending)
  return curves


def try_all(
  answers: Answers, config: AnalysisConfig, share: float
) -> list[Trial]:
  """Tests all settings on the choosing half."""
  p = np.array([0.0 if x.is_strict else 1.0 for x in answers.settings])
  is_certified = p == 0
  losses = answers.losses()
  if answers.has_quality:
    for indices in _curves(answers.settings).values():
      p[indices] = p_value(losses[indices], config.risk, share)
      # Up to the first that is not rejected.
      is_certified[indices] = np.cumprod(p[indices] <= share)
  return _trials(answers, p, is_certified)


def _trials(
  answers: Answers, p: np.ndarray, is_certified: np.ndarray
) -> list[Trial]:
  """Returns the trials of all settings."""
  losses = answers.losses()
  with np.errstate(divide='ignore', invalid='ignore'):
    time = answers.latency.sum(1) / answers.emitted.sum(1)
  return [
    Trial(
      setting=setting,
      speedup=float(time[0] / time[i]),
      loss=float(losses[i].mean()),
      p=float(p[i]),
      is_certified=bool(is_certified[i]),
    )
    for i, setting in enumerate(answers.settings)
  ]


def _fastest(trials: Sequence[Trial], is_candidate: Any) -> int | None:
  """Returns the index of the fastest candidate; None if there is none."""
  candidates = [
    (trial.speedup, -i)
    for i, trial in enumerate(trials)
    # A setting without answers has no speed.
    if is_candidate(trial) and math.isfinite(trial.speedup)
  ]
  return -max(candidates)[1] if candidates else None


def _speedup_over(
  answers: Answers, config: AnalysisConfig, index: int, over: int = 0
) -> tuple[float, float, float]:
  """Returns the speed of a setting over that of another, with its interval."""
  pair, options = [over, index], (config.resamples, config.seed)
  return stats.speedup(answers.latency[pair], answers.emitted[pair], *options)


def _estimate(
  answers: Answers,
  trials: Sequence[Trial],
  config: AnalysisConfig,
  share: float,
) -> tuple[Setting, int] | None:
  """Repeats losses until the fastest likely setting would be certified."""
  index = _fastest(
    trials, lambda x: x.setting.is_strict or x.loss < config.risk
  )
  if index is None or trials[index].is_certified or not answers.has_quality:
    return None
  losses = answers.losses()[index]
  while 2 * len(losses) <= _MOST_NEEDED:
    losses = np.tile(losses, 2)
    if p_value(losses, config.risk, share) <= share:
      return trials[index].setting, len(losses)
  return None
