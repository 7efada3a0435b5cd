"""Points timed against each other on the clock, one prompt at a time.

Elsewhere wall-clock times of two points cannot be compared: rows are decoded
together, and a batch that is half empty is slower per token.
"""

import dataclasses
import math

import pandas as pd

from experiments.analysis import comparisons, mixture, reference_points, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points, Run


def timed_points(run: Run) -> Points | None:
  """Returns the points that a run timed, over all of its tasks."""
  if not run.race:
    return None
  # Tasks may have examples of the same id, and qualities of several scales.
  changes = {'task': mixture.ALL, 'quality': math.nan}
  together = [
    dataclasses.replace(r, **changes, id=f'{r.task} {r.id}') for r in run.race
  ]
  timed = dataclasses.replace(
    run, records={'race': together}, config=run.config | {'batch_size': 1}
  )
  return runs.gather([timed], clock=True)


def compare(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Compares each timed point with the verifier alone."""
  frame = comparisons.compare(points, config)
  frame = frame[frame.method != reference_points.VERIFIER]
  return frame.assign(by_model=frame.speedup / frame.wall_speedup)
