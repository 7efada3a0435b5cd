"""Lines that a sweep prints when it ends."""

import pandas as pd

from cascades.sampler import batching
from experiments.analysis import comparisons

_BEST_COLUMNS = (
  'task variant gamma lenience quality at_quality rejection_rate'
  ' block_efficiency relative_latency'
).split()


def print_best(frame: pd.DataFrame) -> None:
  """Prints the best point of each method, and the number of failures."""
  best = comparisons.best_points(frame).rename(
    columns={'as_good': 'at_quality'}
  )
  # A sweep of oracles alone has no best points.
  if len(best):
    print(
      "\nEach method's fastest point at the verifier's quality, or its best:"
    )
    print(
      best.to_string(
        columns=_BEST_COLUMNS,
        index=False,
        na_rep='-',
        float_format='{:.3f}'.format,
        formatters={
          'lenience': '{:g}'.format,
          'at_quality': lambda value: 'yes' if value else 'no',
        },
      )
    )
  if frame.failed.any():
    print(
      f'Examples that failed: {frame.failed.sum()}, in'
      f' {(frame.failed > 0).sum()} points; their records say why.'
    )


def print_usage(usage: batching.DecodeStats) -> None:
  """Prints the time of both phases, and the share of rows that were busy."""
  if usage.rows:
    print(
      f'Batch utilization: {usage.utilization:.1%} of {usage.rows} blocks.'
      f' Prefill: {usage.prefill_s:.0f} s. Decoding: {usage.decode_s:.0f} s.'
    )
