"""Speed of the loop on a CPU against gemma's sampler and a lower bound.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: in about an hour on 2 cores, every entrant's compile, prefill and decode
time, and which thresholds are met. Committed results are in
experiments/results/benchmark.
"""

import ml_collections

from configs import common


def _shape(**sizes) -> ml_collections.ConfigDict:
  """Returns the shape of a small Gemma 2."""
  return common.shape('gemma2', **sizes)


def _pairs() -> tuple[ml_collections.ConfigDict, ...]:
  """Returns the bundled pair and pairs with random weights."""
  return (
    common.pair('tiny-verifier', 'tiny-drafter', 'bundled'),
    common.pair(
      _shape(
        width=512,
        hidden=2048,
        layers=7,
        num_heads=8,
        kv_heads=4,
        head_dim=64,
        vocab_size=8192,
      ),
      _shape(
        width=48,
        hidden=128,
        layers=2,
        num_heads=2,
        kv_heads=1,
        head_dim=32,
        vocab_size=8192,
      ),
      '32M',
    ),
    common.pair(
      _shape(
        width=768,
        hidden=3072,
        layers=12,
        num_heads=12,
        kv_heads=4,
        head_dim=64,
        vocab_size=16384,
      ),
      _shape(
        width=128,
        hidden=512,
        layers=6,
        num_heads=4,
        kv_heads=2,
        head_dim=64,
        vocab_size=16384,
      ),
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
