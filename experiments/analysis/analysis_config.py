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
    stats.RESAMPLES, 'Number of bootstrap resamples of the examples.', low=1
  )
  seed: int = option(0, 'Seed of the resamples.', low=0)
  # Of a decision alone, whose fields are checked.
  risk: float = 0.05
  delta: float = 0.1
