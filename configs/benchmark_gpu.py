"""Speed of the loop on a GPU, with the shapes of Gemma 2 and Gemma 3 pairs.

Command: python -m experiments.benchmark --config=configs/benchmark_gpu.py
Shows: in bfloat16, with random weights and forced acceptance rates: tokens per
second, weights read per second compared with the device's copying speed,
seconds of compilation, and peak memory. It takes 60 GB of device memory.
"""

import ml_collections

from configs import common


def _shape(family: str, **sizes) -> ml_collections.ConfigDict:
  """Returns a shape with the vocabulary and the heads of the pairs."""
  return common.shape(family, head_dim=256, vocab_size=262_144, **sizes)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.decoding(
    dtype='bfloat16',
    pairs=(
      common.pair(
        _shape(
          'gemma2',
          width=3584,
          hidden=14336,
          layers=42,
          num_heads=16,
          kv_heads=8,
        ),
        _shape(
          'gemma2', width=2304, hidden=9216, layers=26, num_heads=8, kv_heads=4
        ),
        'gemma2 2B to 9B',
      ),
      common.pair(
        _shape(
          'gemma3_text',
          width=2560,
          hidden=10240,
          layers=34,
          num_heads=8,
          kv_heads=4,
          sliding_window=1024,
        ),
        _shape(
          'gemma3_text',
          width=640,
          hidden=2048,
          layers=18,
          num_heads=4,
          kv_heads=1,
          sliding_window=512,
        ),
        'gemma3 270M to 4B',
      ),
    ),
    # Rows of a batch.
    batch_sizes=(1, 16),
    # Tokens drafted per block by strict entrants.
    gammas=(2, 4, 8),
    # Leniences of token_v3; unused, since they need trained weights.
    leniences=(0.5,),
    # Length of random prompts.
    prompt_tokens=64,
    # Length of every answer.
    new_tokens=128,
  )
