"""Margins, targets and resampling settings of an analysis.

The module imports neither pandas nor JAX, because flags are made of the class.
"""

import dataclasses

from experiments.records import stats


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
  """Margins, calibration targets and bootstrap settings of an analysis.

  Qualities are shares of the best score of a task.

  Attributes:
    margin: Largest loss of quality at which a point still counts as good as the
      verifier alone.
    resamples: Number of bootstrap resamples of the examples.
    seed: Seed of the resamples, and of the split of the examples into halves.
    loss: Calibration target: largest loss of quality.
    latency: Calibration target: largest modelled latency per token; the
      verifier alone has 1.
    risk: Largest loss of quality of a lenience with a guarantee.
    delta: Probability with which that guarantee may fail.
  """

  margin: float = 0.03
  resamples: int = stats.RESAMPLES
  seed: int = 0
  loss: float = 0.02
  latency: float = 0.75
  risk: float = 0.05
  delta: float = 0.1
