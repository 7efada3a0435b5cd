"""Margins, targets and resampling settings of an analysis.

The module imports neither pandas nor JAX, because flags are made of the class.
"""

import dataclasses

from cascades.arguments import Declared, option
from experiments.records import stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig(Declared):
  """Margins, guarantees and bootstrap settings of an analysis.

  Qualities are shares of the best score of a task.
  """

  margin: float = option(
    0.03,
    low=0,
    high=1,
    help="Largest loss (best score = 1) that counts as the verifier's quality.",
  )
  resamples: int = option(
    stats.RESAMPLES,
    low=1,
    help='Number of bootstrap resamples of the examples.',
  )
  seed: int = option(
    0,
    low=0,
    help='Seed of the resamples.',
  )
  risk: float = option(
    0.05,
    low=0.001,
    high=0.999,
    help='Largest quality loss of a certified setting, as a share of the best'
    ' score: 3 points of BLEU or chrF are 0.03.',
  )
  delta: float = option(
    0.1,
    low=0.0001,
    high=0.9999,
    help='Probability with which the guarantee may fail.',
  )
