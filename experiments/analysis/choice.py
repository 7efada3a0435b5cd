"""What is asked of a comparison; light, for flags are made of it."""

import dataclasses

from experiments.records import stats


@dataclasses.dataclass(frozen=True)
class Choice:
  """What is asked of a comparison, and how its intervals are drawn.

  Attributes:
    margin: By how much a quality may be less and still be the verifier's, as a
      share of the best that a task can give.
    resamples: How often examples are drawn anew.
    seed: Decides these draws, and which half an example is in.
    loss: Target of a calibration: quality that may be lost, as a share of the
      best that a task can give.
    latency: Target of a calibration: most modelled latency of a token, the
      verifier's being 1.
    risk: Quality that a lenience with a guarantee may lose, as a share.
    delta: How often that guarantee may fail.
  """

  margin: float = 0.03
  resamples: int = stats.RESAMPLES
  seed: int = 0
  loss: float = 0.02
  latency: float = 0.75
  risk: float = 0.05
  delta: float = 0.1
