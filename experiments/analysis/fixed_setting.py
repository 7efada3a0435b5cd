"""A setting that was fixed beforehand, judged on all examples of a sweep.

No half of the examples is needed to choose it. The setting is shown to pay if
its modelled speed-ups over strict decoding and over the verifier alone are
above 1, and its quality is not below the verifier's by more than a margin; all
by intervals of 95 % that are paired over the examples.
"""

import bisect
import dataclasses
import math

import numpy as np

from experiments.analysis import certification, risk
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Answers, Comparison, Setting
from experiments.records import stats

# Level of one end of an interval of 95 %.
_ONE_SIDED = 0.025


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement(Comparison):
  """A setting that was fixed beforehand, on all examples."""

  needed: int
  is_faster: bool
  keeps_quality: bool
  fallback: Setting

  @property
  def is_shown(self) -> bool:
    """True if the setting is faster, at the verifier's quality."""
    return self.is_faster and self.keeps_quality and not self.unsolved


def judge(
  answers: Answers, setting: Setting, strict: Setting, config: AnalysisConfig
) -> Judgement:
  """Judges a setting that no choice on these examples has led to."""
  if not answers.ids:
    raise ValueError(certification.NO_ANSWERS)
  index, strict_index = map(answers.settings.index, (setting, strict))
  compared = certification.compare(answers, config, index, strict_index)
  # None if strict decoding is compared with itself.
  compared['speedup_over_strict'] = faster = compared[
    'speedup_over_strict'
  ] or (1.0, 1.0, 1.0)
  time = answers.seconds_per_token()
  of_strict = certification.speedup_over(answers, config, strict_index)
  is_slow, unsolved = not of_strict[1] > 1, answers.unsolved
  judgement = Judgement(
    **compared,
    trials=(),
    needed=_needed(answers.quality[[0, index]], config.margin),
    is_faster=min(faster[1], compared['speedup'][1]) > 1,
    keeps_quality=setting.is_strict or compared['lost'][2] < config.margin,
    fallback=answers.settings[0] if is_slow or unsolved else strict,
    slow=(strict, of_strict) if is_slow else None,
    unsolved=unsolved,
  )
  trials = [
    certification.Trial(
      setting=x,
      speedup=float(time[0] / time[i]),
      loss=float(answers.losses()[i].mean()),
      p=0.0 if x.is_strict else math.nan,
      is_certified=x.is_strict or judgement.is_shown,
    )
    for i, x in enumerate(answers.settings)
  ]
  return dataclasses.replace(judgement, trials=tuple(trials))


def _needed(quality: np.ndarray, margin: float) -> int:
  """Returns the fewest examples that can show a quality within the margin."""
  if not margin:
    return 0
  if not np.isin(quality, (0, 1)).all():
    return risk.needed(margin, _ONE_SIDED)
  zeros = np.zeros((100_000, 1))
  return bisect.bisect_left(
    range(len(zeros)),
    True,
    lo=1,
    key=lambda n: stats.paired_interval(zeros[:n], zeros[:n])[0][0] > -margin,
  )
