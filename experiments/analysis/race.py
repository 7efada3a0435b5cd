"""Arms against each other on the clock: the same prompts, one at a time.

Elsewhere the clock says nothing of one point beside another: rows are decoded
together, as many as there are, and a batch that is half empty is slower.
"""

import dataclasses

import pandas as pd

from experiments.analysis import comparisons, mixture, reference_points, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points, Run


def timed_points(run: Run) -> Points | None:
  """The arms that a run timed, over all of its tasks; None if it timed none."""
  if not run.race:
    return None
  together = [dataclasses.replace(r, task=mixture.ALL) for r in run.race]
  timed = dataclasses.replace(
    run, lines={'race': together}, config=run.config | {'batch_size': 1}
  )
  return runs.gather([timed], clock=True)


def compare(found: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Each arm against the verifier alone, on the clock and as modelled.

  Args:
    found: What `points` gives.
    config: How intervals are drawn.

  Returns:
    Rows as `comparisons.compare` makes them, without the verifier alone, with
    `by_model`: time on the clock by modelled latency, both over the verifier's.
  """
  frame = comparisons.compare(found, config)
  frame = frame[frame.method != reference_points.VERIFIER]
  return frame.assign(by_model=frame.speedup / frame.wall_speedup)
