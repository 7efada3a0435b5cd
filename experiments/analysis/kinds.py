"""What a speculative cascade has to beat, and what it is worth beside that.

Some of what a lenient rule gains could be had without it: by cutting off the
verifier's unlikely tokens and decoding what is left without loss, by a cascade
that does not speculate, or by keeping whatever was drafted.
"""

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, roles
from experiments.analysis.comparisons import Choice
from experiments.analysis.runs import Points

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


def kind(method: str, verification: str, lenience: float) -> str:
  """What sort of decoding a point is; one of `KINDS`, '' for a model alone."""
  if method in roles.BASELINES:
    return ''
  if verification == 'sequential':
    oracle = roles.is_oracle(method, verification)
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


def best_of_kinds(frame: pd.DataFrame) -> pd.DataFrame:
  """Each kind by its best points.

  Args:
    frame: From `comparisons.compare`.

  Returns:
    A row per task and kind that is there, with the two sides of
    `comparisons.two_sided` by modelled latency: variant, lenience, gamma and
    speedup with its interval of the fastest point at the verifier's quality,
    and best_variant, best_lenience, best_gamma, best_speedup, and difference
    with its interval, of the best within the verifier's latency; nan where
    there is none.
  """
  kinds = list(map(kind, frame.method, frame.verification, frame.lenience))
  frame = frame.assign(kind=kinds)
  frame = frame[np.isfinite(frame.speedup) & np.isfinite(frame.difference)]
  rows = []
  group = [*comparisons.GROUP, 'kind']
  for key, part in frame[frame.kind != ''].groupby(group, sort=False):
    row = dict(zip(group, key, strict=True))
    fit = part[part.as_good]
    if len(fit):
      row |= fit.loc[fit.speedup.idxmax(), [*_TOLD, *_SPEEDUP]].to_dict()
    fast = part[part.speedup >= 1]
    if len(fast):
      best = fast.sort_values(['difference', 'speedup'], kind='stable').iloc[-1]
      row |= {f'best_{name}': best[name] for name in _TOLD}
      row |= best[_DIFFERENCE].to_dict()
    rows.append(row)
  rows.sort(key=lambda row: KINDS.index(row['kind']))
  tasks = {task: i for i, task in enumerate(frame.task.unique())}
  rows.sort(key=lambda row: (tasks[row['task']], row['temperature']))
  return pd.DataFrame(rows, columns=_COLUMNS)


_TOLD = ['variant', 'run', 'lenience', 'gamma', 'speedup']
_SPEEDUP = ['speedup_low', 'speedup_high']
_DIFFERENCE = ['difference', 'difference_low', 'difference_high']
_COLUMNS = [
  *comparisons.GROUP,
  'kind',
  *_TOLD,
  *_SPEEDUP,
  *(f'best_{name}' for name in _TOLD),
  *_DIFFERENCE,
]


def truncated_alike(found: Points, choice: Choice) -> pd.DataFrame:
  """TokenV3 beside the verifier that is truncated to the same tokens.

  TokenV3 at lenience lam keeps the drafter to tokens with p >= (1 - lam) max p;
  min-p at 1 - lam samples from p on just these. What is left of a difference
  is the drafter's part, and no merit of the truncation (arXiv 2607.26627).

  Args:
    found: Points and answers.
    choice: How intervals are drawn.

  Returns:
    A row per pair of points with the same run, gamma and verification:
    lenience (of TokenV3), gained (its quality less that of min-p) and faster
    (its speed by that of min-p, per token), with paired intervals.
  """
  rows = []
  keys = [*comparisons.GROUP, 'run', 'batch_size', 'verification', 'gamma']
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
        | comparisons.pair(found, place, alike.index[0], choice)
      )
  ends = ('', '_low', '_high')
  columns = [*keys, 'variant', 'lenience', 'n']
  columns += [f'{name}{end}' for name in ('gained', 'faster') for end in ends]
  return pd.DataFrame(rows, columns=columns)
