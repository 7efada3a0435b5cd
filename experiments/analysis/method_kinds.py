"""What a speculative cascade has to beat, and what it is worth beside that.

Some of what a lenient rule gains could be had without it: by cutting off the
verifier's unlikely tokens and decoding what is left without loss, by a cascade
that does not speculate, or by keeping whatever was drafted.
"""

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import GROUP, RUN, Points

_CASCADES = ('chow', 'diff', 'opt', 'token_v1', 'token_v2', 'token_v3')
_TRUNCATED = ('min_p', 'top_p', 'top_k', 'eta')
_OF_ANSWERS = ('sequence_mean', 'sequence_least')
# In the order of the table.
KINDS = (
  'speculative cascade',
  'strict decoding',
  'relaxed decoding',
  'truncated verifier',
  'sequential cascade',
  'sequential oracle',
  'cascade of answers',
  'always accept',
)


def classify(method: str, verification: str, lenience: float) -> str:
  """What sort of decoding a point is; one of `KINDS`, '' for a model alone.

  Args:
    method: Its name, whoever registered it.
    verification: How its blocks were verified, as in a record.
    lenience: Where on its curve it is; nan where the method has none.
  """
  if method in reference_points.BASELINES:
    return ''
  if verification == reference_points.SEQUENTIAL:
    oracle = reference_points.is_oracle(method, verification)
    return 'sequential oracle' if oracle else 'sequential cascade'
  if method == 'speed' and lenience == 0:
    return 'strict decoding'
  known = (
    ('speculative cascade', _CASCADES),
    ('truncated verifier', _TRUNCATED),
    ('cascade of answers', _OF_ANSWERS),
    ('always accept', ('always_accept',)),
  )
  # A rule of somebody's own relaxes strict decoding, however it does.
  return next((k for k, of in known if method in of), 'relaxed decoding')


_TOLD = ['variant', 'run', 'lenience', 'gamma', 'speedup']
_GROUP = [*GROUP, 'kind']


def best_of_kinds(frame: pd.DataFrame) -> pd.DataFrame:
  """Each kind by its best points.

  Args:
    frame: A row per point, as `comparisons.compare` makes them.

  Returns:
    A row per task and kind that is there, with the two sides of
    `comparisons.two_sided` by modelled latency: variant, lenience, gamma and
    speedup with its interval of the fastest point at the verifier's quality,
    and best_variant, best_lenience, best_gamma, best_speedup, and difference
    with its interval, of the best within the verifier's latency; nan where
    there is none. No rows where there is one kind only.
  """
  kinds = list(map(classify, frame.method, frame.verification, frame.lenience))
  frame = frame.assign(kind=kinds)
  frame = frame[np.isfinite(frame.speedup) & np.isfinite(frame.difference)]
  tasks = frame.task.unique().tolist()
  frame = frame[frame.kind != '']
  fastest = comparisons.fastest_as_good(frame, _GROUP)
  fastest = fastest[[*_GROUP, *_TOLD, *comparisons.with_ends('speedup')[1:]]]
  # Of points that are alike the last one.
  best = comparisons.best_as_fast(frame[::-1], _GROUP, by='difference')
  best = best[[*_GROUP, *_TOLD, *comparisons.with_ends('difference')]]
  best = best.rename(columns={name: f'best_{name}' for name in _TOLD})
  made = frame[_GROUP].drop_duplicates()
  if made.kind.nunique() < 2:
    made = made.iloc[:0]
  made = made.merge(fastest, 'left', on=_GROUP).merge(best, 'left', on=_GROUP)
  place = made.assign(
    task=made.task.map(tasks.index), kind=made.kind.map(KINDS.index)
  )
  order = place.sort_values(_GROUP, kind='stable').index
  return made.loc[order].reset_index(drop=True)


def compare_with_truncation(
  found: Points, config: AnalysisConfig
) -> pd.DataFrame:
  """TokenV3 beside the verifier that is truncated to the same tokens.

  TokenV3 at lenience lam keeps the drafter to tokens with p >= (1 - lam) max p;
  min-p at 1 - lam samples from p on just these. What is left of a difference
  is the drafter's part, and no merit of the truncation (arXiv 2607.26627).

  Args:
    found: Points and answers.
    config: How intervals are drawn.

  Returns:
    A row per pair of points with the same run, gamma and verification:
    lenience (of TokenV3), gained (its quality less that of min-p) and faster
    (its speed by that of min-p, per token), with paired intervals.
  """
  rows = []
  keys = ['task', *RUN, 'verification', 'gamma']
  for key, part in found.points.groupby(keys, sort=False):
    ours = part[part.method == 'token_v3']
    for place, row in ours.iterrows():
      alike = part[
        (part.method == 'min_p') & np.isclose(part.lenience, 1 - row.lenience)
      ]
      if alike.empty or comparisons.is_corpus(row.task):
        continue
      rows.append(
        dict(zip(keys, key, strict=True))
        | {'variant': row.variant, 'lenience': row.lenience}
        | comparisons.pair(found, place, alike.index[0], config)
      )
  told = [*comparisons.with_ends('gained'), *comparisons.with_ends('faster')]
  return pd.DataFrame(rows, columns=[*keys, 'variant', 'lenience', 'n', *told])
