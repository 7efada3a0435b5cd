"""Speed of the loop on a CPU against gemma's sampler and a lower bound.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: in about an hour on 2 cores, every entrant's compile, prefill and decode
time. Committed results are in experiments/results/benchmark.
"""

import ml_collections

from configs import common


def _pairs() -> tuple[ml_collections.ConfigDict, ...]:
  """Returns the bundled pair and pairs with random weights."""
  # Sizes of small Gemma 2s, in the order of the arguments of common.shape.
  return (
    common.pair('tiny-verifier', 'tiny-drafter', 'bundled'),
    common.pair(
      common.shape('gemma2', 512, 2048, 7, 8, 4, 64, 8192),
      common.shape('gemma2', 48, 128, 2, 2, 1, 32, 8192),
      '32M',
    ),
    common.pair(
      common.shape('gemma2', 768, 3072, 12, 12, 4, 64, 16384),
      common.shape('gemma2', 128, 512, 6, 4, 2, 64, 16384),
      '120M',
      # Batches of 16 take as long as all other entrants together.
      new_tokens=32,
      repeats=3,
    ),
  )


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.decoding(
    pairs=_pairs(),
    # Rows of a batch.
    batch_sizes=(1, 4, 16),
    # Tokens drafted per block by strict entrants.
    gammas=(1, 2, 3, 4, 5, 6, 7, 8),
    # Leniences of token_v3, for the bundled pair.
    leniences=(0.5, 0.9, 0.99),
    # Length of random prompts; the bundled pair solves word problems.
    prompt_tokens=32,
    # Length of every answer.
    new_tokens=64,
  )
