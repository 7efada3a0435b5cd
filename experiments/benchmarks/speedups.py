"""What follows from the seconds of a contest: ratios, and the formula."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.benchmarks import digits

# Bare forward passes; they write nothing that could be counted.
_BARE = ('floor', 'reading', 'drafting')


def rows(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The timed arms, with what follows from them.

  Args:
    figures: All that is known; of each pair and batch at least gemma's arm,
      ours alone and lock-step.

  Returns:
    For each arm its fields, `whole_s` of prefill and decoding, `tokens_per_s`
    of decoding, `ms_per_block`,
    `over_gemma` and `over_lock_step` (times as fast), `over_floor` (times as
    slow, for arms that have a floor), `formula` (times as fast as ours alone
    by the formula, batch 1) and `over_formula` (measured by predicted), and
    `bytes_per_s` of weights.
  """
  timed = [row for row in figures if 'decode_s' in row]
  found = []
  for row in timed:
    beside = [
      other
      for other in timed
      if (other['pair'], other['batch']) == (row['pair'], row['batch'])
    ]
    found.append(_seconds(row))
    if row['arm'] not in _BARE:
      found[-1] |= _ratios(row, beside)
  return found


def _seconds(row: dict[str, Any]) -> dict[str, Any]:
  """An arm's fields, and medians of its seconds."""
  decode = digits.median(row['decode_s'])
  fields = ('pair', 'batch', 'arm', 'gamma', 'lenience', 'acceptance')
  return {name: row.get(name) for name in fields} | {
    'prefill_s': digits.median(row['prefill_s']),
    'decode_s': decode,
    'whole_s': digits.median(np.add(row['prefill_s'], row['decode_s'])),
    'compile_s': sum(
      row.get(f'{part}_compile_s', 0) for part in ('prefill', 'decode')
    ),
    'ms_per_block': 1e3 * decode / row['blocks'],
    'bytes_per_s': row['weight_bytes'] / decode,
  }


def _speed(row: dict[str, Any]) -> float:
  """Tokens per second of decoding."""
  return row['tokens'] / digits.median(row['decode_s'])


def _ratios(
  row: dict[str, Any], beside: Sequence[dict[str, Any]]
) -> dict[str, float]:
  """How an arm that writes does against others.

  Args:
    row: Its figure.
    beside: The figures of its pair and batch.
  """

  def of(arm: str, gamma: int | None = None) -> dict[str, Any] | None:
    for other in beside:
      if other['arm'] == arm and gamma in (None, other['gamma']):
        return other
    return None

  out = {'tokens_per_s': _speed(row)}
  for name, arm in (('gemma', 'gemma'), ('lock_step', 'lock-step')):
    out[f'over_{name}'] = out['tokens_per_s'] / _speed(of(arm))
  floor = of('floor', row['gamma'])
  # Only as many blocks can be compared.
  same = floor is not None and floor['blocks'] == row['blocks']
  if row['arm'] in ('alone', 'strict') and same:
    seconds = [digits.median(one['decode_s']) for one in (row, floor)]
    out['over_floor'] = seconds[0] / seconds[1]
  if row['arm'] == 'strict' and row['batch'] == 1:
    alone = of('alone')
    as_many = out['tokens_per_s'] * digits.median(alone['decode_s'])
    out['over_alone'] = as_many / alone['tokens']
    out['formula'] = _formula(
      row, of('floor', 0), of('reading', row['gamma']), of('drafting', 0)
    )
    out['over_formula'] = out['over_alone'] / out['formula']
  return out


def _formula(
  row: dict[str, Any],
  one: dict[str, Any],
  reading: dict[str, Any],
  drafting: dict[str, Any],
) -> float:
  """Tokens per block by what a block costs, in passes of the verifier.

  Leviathan et al. 2023, with the measured cost of reading gamma + 1 tokens in
  place of 1: ((1 - b^(gamma+1)) / (1 - b)) / (gamma c + v_gamma / v_1).

  Args:
    row: The figure of a strict arm, which says gamma, and b as `acceptance`.
    one: The figure of the verifier's passes of one token each, for v_1.
    reading: The figure of its passes of gamma + 1 tokens, for v_gamma.
    drafting: The figure of the drafter's passes, for c.
  """
  v1, v, d = (
    digits.median(arm['decode_s']) / arm['blocks']
    for arm in (one, reading, drafting)
  )
  tokens = sum(row['acceptance'] ** i for i in range(row['gamma'] + 1))
  return tokens / (row['gamma'] * d / v1 + v / v1)
