"""Speed of the loop on a CPU, by gemma's sampler and by its lower bound.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: in about an hour on 2 cores, every entrant's compile, prefill and decode
time, and which thresholds are met. What it gave once is in
experiments/results/benchmark.
"""

import ml_collections

from configs import common


def _shape(*sizes) -> ml_collections.ConfigDict:
  return common.shape('gemma2', *sizes)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.decoding(
    pairs=(
      common.pair('tiny-verifier', 'tiny-drafter', 'bundled'),
      common.pair(
        _shape(512, 2048, 7, 8, 4, 64, 8192),
        _shape(48, 128, 2, 2, 1, 32, 8192),
        '32M',
      ),
      common.pair(
        _shape(768, 3072, 12, 12, 4, 64, 16384),
        _shape(128, 512, 6, 4, 2, 64, 16384),
        '120M',
        # Its batches of 16 take as long as all the rest.
        new_tokens=32,
        repeats=3,
      ),
    ),
    # Rows of a batch.
    batch_sizes=(1, 4, 16),
    # Tokens drafted per block, for the strict arms.
    gammas=(1, 2, 3, 4, 5, 6, 7, 8),
    # Of token_v3, with trained weights.
    leniences=(0.5, 0.9, 0.99),
    # Of random prompts; the bundled pair solves word problems.
    prompt_tokens=32,
    # Of every answer.
    new_tokens=64,
  )
