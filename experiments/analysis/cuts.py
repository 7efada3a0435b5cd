"""The summary in parts: rows that are looked at together, and the best of them.

A cut is of one task, temperature and run, and of one gamma; where gamma was
varied, there is one more in which each point has the gamma that suits it best.
"""

import dataclasses
import math
from collections.abc import Iterator

import pandas as pd

from experiments.analysis import roles
from experiments.records import metrics


# Frames are not equal to anything in one word.
@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
  """Rows of the summary that are looked at together.

  Attributes:
    frame: A row per point, the curves that have no gamma among them: the
      columns of `runs.summary`, but with gamma 0 where there are no blocks,
      oracle (whether its cost leaves out what its rule looks at), and
      relative_length (of the output, by that of the verifier alone).
    task: What was asked.
    temperature: That of both models; None where all of the summary has one.
    run: Which workdir it is of; empty where that need not be told.
    gamma: The gamma of all rows; None where all of the summary has one.
    tuned: Whether each point has a gamma of its own.
    under: Cuts of the same by each gamma, where they are tuned here.
  """

  frame: pd.DataFrame
  task: str
  temperature: float | None = None
  run: str = ''
  gamma: int | None = None
  tuned: bool = False
  under: tuple['Cut', ...] = ()

  @property
  def known(self) -> bool:
    """Whether anything is said of how good the answers are."""
    return bool(self.frame.quality.notna().any())


def cut(frame: pd.DataFrame) -> Iterator[Cut]:
  """A cut per task, temperature and run; where gamma was varied, tuned.

  Args:
    frame: Rows of several workdirs, as `runs.summary` makes them.
  """
  # The models alone, and cascades of whole answers, have no gamma.
  plain = frame.groupby('variant').gamma.transform('max') == 0
  temperatures, gammas = (
    frame[~plain][column].nunique() > 1 for column in ('temperature', 'gamma')
  )
  keys = ['task', 'temperature', 'run']
  for (task, temperature, run), part in frame.groupby(keys, sort=False):
    told = {
      'task': task,
      'temperature': temperature if temperatures else None,
      'run': run,
    }
    without = plain[part.index]
    single = [
      Cut(
        _told(part[without | (part.gamma == gamma)]),
        **told,
        gamma=gamma if gammas else None,
      )
      for gamma in part[~without].gamma.unique()
    ]
    if len(single) > 1:
      best = _told(_tuned(part))
      yield Cut(best, **told, tuned=True, under=tuple(single))
    else:
      yield from single or [Cut(_told(part), **told)]


def _tuned(part: pd.DataFrame) -> pd.DataFrame:
  """Each point at its fastest gamma; curves in order, along their lenience."""
  appears = {v: i for i, v in enumerate(part.variant.unique())}
  best = metrics.tuned(part)
  best = best.assign(rank=best.variant.map(appears))
  return best.sort_values(['rank', 'lenience'], kind='stable')


def _told(frame: pd.DataFrame) -> pd.DataFrame:
  """With what follows from the rows of a cut."""
  sequential = frame.verification == roles.SEQUENTIAL
  alone = frame[frame.variant == roles.VERIFIER].mean_output_tokens
  level = float(alone.iloc[0]) if len(alone) else math.nan
  oracle = list(map(roles.is_oracle, frame.method, frame.verification))
  return frame.assign(
    gamma=frame.gamma.where(~sequential, 0),
    oracle=pd.Series(oracle, frame.index, dtype=bool),
    relative_length=frame.mean_output_tokens / level,
  )


def no_worse(one: Cut) -> pd.DataFrame | None:
  """Points that score no worse than the verifier alone, fastest first.

  They are judged on these same examples, with no margin for chance:
  `comparisons.fastest_as_good` has one.

  Args:
    one: Points that are looked at together.

  Returns:
    Their rows, without models alone and oracles; None where there is no
    verifier alone, or no quality is known.
  """
  frame = one.frame
  alone = frame[frame.method == roles.VERIFIER]
  if alone.empty or not one.known:
    return None
  drafting = frame[~frame.method.isin(roles.BASELINES) & ~frame.oracle]
  fit = drafting[drafting.quality >= alone.quality.iloc[0]]
  fit = fit[fit.relative_latency.notna()]
  return fit.sort_values('relative_latency', kind='stable')
