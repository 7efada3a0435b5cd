"""Kinds of decoding, each by its best point, as peers of a cascade.

Some of the gain of a lenient rule could be had without speculation or without a
rule: by truncating the verifier's unlikely tokens and decoding the rest without
loss, by a cascade that does not speculate, or by accepting every draft.
"""

import numpy as np
import pandas as pd

from experiments.analysis import comparisons, reference_points
from experiments.analysis.runs import GROUP

_TRUNCATED = ('min_p', 'top_p', 'top_k', 'eta')
_ANSWER_CASCADES = ('sequence_mean', 'sequence_least')
# In the order of the table.
KINDS = (
  'speculative cascade',
  'strict decoding',
  'relaxed decoding',
  'truncated verifier',
  'sequential cascade',
  'sequential oracle',
  'sequence-level cascade',
  'always accept',
  'other method',
)


def classify(
  method: str, verification: str, lenience: float, has_rule: bool
) -> str:
  """Returns the kind of decoding of a point."""
  if method in reference_points.BASELINES:
    return ''
  if verification == reference_points.SEQUENTIAL:
    oracle = reference_points.is_oracle(method, verification)
    return 'sequential oracle' if oracle else 'sequential cascade'
  if method == 'speed' and lenience == 0:
    return 'strict decoding'
  if has_rule:
    return 'speculative cascade'
  methods_by_kind = {
    'truncated verifier': _TRUNCATED,
    'sequence-level cascade': _ANSWER_CASCADES,
    'always accept': ('always_accept',),
  }
  for kind, names in methods_by_kind.items():
    if method in names:
      return kind
  # The import loads JAX, which not every page needs.
  from cascades.methods import METHODS

  # What a method of the user does without a rule is not known.
  return 'relaxed decoding' if METHODS.is_builtin(method) else 'other method'


_POINT_COLUMNS = ['variant', 'run', 'lenience', 'gamma', 'speedup']
_GROUP = [*GROUP, 'kind']


def best_of_kinds(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the best points of each kind of decoding."""
  kind_column = [
    classify(*key)
    for key in zip(
      frame.method,
      frame.verification,
      frame.lenience,
      frame.has_rule,
      strict=True,
    )
  ]
  frame = frame.assign(kind=kind_column)
  frame = frame[np.isfinite(frame.speedup) & np.isfinite(frame.difference)]
  tasks = frame.task.unique().tolist()
  frame = comparisons.with_blocks(frame[frame.kind != ''])
  fastest = frame[frame.as_good].sort_values(
    'speedup', ascending=False, kind='stable'
  )
  fastest = fastest.drop_duplicates(_GROUP)[
    [*_GROUP, *_POINT_COLUMNS, *comparisons.with_ends('speedup')[1:]]
  ]
  # Of equally good points the last one is taken.
  best = frame[frame.speedup >= 1][::-1].sort_values(
    ['difference', 'speedup'], ascending=False, kind='stable'
  )
  best = best.drop_duplicates(_GROUP)[
    [*_GROUP, *_POINT_COLUMNS, *comparisons.with_ends('difference')]
  ]
  best = best.rename(columns={name: f'best_{name}' for name in _POINT_COLUMNS})
  output = frame[_GROUP].drop_duplicates()
  if output.kind.nunique() < 2:
    output = output.iloc[:0]
  output = output.merge(fastest, 'left', on=_GROUP)
  output = output.merge(best, 'left', on=_GROUP)
  ranks = output.assign(
    task=output.task.map(tasks.index), kind=output.kind.map(KINDS.index)
  )
  order = ranks.sort_values(_GROUP, kind='stable').index
  return output.loc[order].reset_index(drop=True)
