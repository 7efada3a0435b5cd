"""A setting that was fixed beforehand, judged on all examples of a sweep.

No half of the examples is needed to choose it. The setting is shown to pay if
its modelled speed-up over strict decoding is above 1, and its quality is not
below the verifier's by more than a margin; both by intervals of 95 % that are
paired over the examples. Where no answer differs such an interval has no width,
so that a least number of examples is asked for; see `risk.needed`.
"""

import dataclasses
import math

from experiments.analysis import certification, risk
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Answers, Comparison, Setting
from experiments.records import stats

# Level of one end of an interval of 95 %.
_ONE_SIDED = 0.025


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement(Comparison):
  """A setting that was fixed beforehand, on all examples.

  Attributes:
    needed: Fewest examples that could show the quality within the margin.
    is_faster: True if the interval over strict decoding is above 1.
    keeps_quality: True if the paired interval of the quality less the
      verifier's is above -margin.
    fallback: The faster of strict decoding and the verifier alone.
  """

  needed: int
  is_faster: bool
  keeps_quality: bool
  fallback: Setting

  @property
  def is_shown(self) -> bool:
    """True if the setting is faster, at the verifier's quality."""
    is_enough = self.reporting >= self.needed
    return is_enough and self.is_faster and self.keeps_quality


def judge(
  answers: Answers, setting: Setting, strict: Setting, config: AnalysisConfig
) -> Judgement:
  """Judges a setting that no choice on these examples has led to.

  Args:
    answers: Answers of the verifier alone and of both settings.
    setting: The setting.
    strict: The strict setting that it is compared with.
    config: Margin and bootstrap settings.

  Raises:
    ValueError: The verifier alone has no answer.
  """
  if not answers.ids:
    raise ValueError(certification.NO_ANSWERS)
  index, strict_index = map(answers.settings.index, (setting, strict))
  compared = certification.compare(answers, config, index, strict_index)
  # None if strict decoding is compared with itself.
  compared['speedup_over_strict'] = faster = compared[
    'speedup_over_strict'
  ] or (1.0, 1.0, 1.0)
  time = answers.seconds_per_token()
  judgement = Judgement(
    **compared,
    trials=(),
    needed=risk.needed(config.margin, _ONE_SIDED),
    is_faster=faster[1] > 1,
    keeps_quality=bool(stats.not_inferior(-compared['lost'][2], config.margin)),
    fallback=strict if time[strict_index] < time[0] else answers.settings[0],
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
