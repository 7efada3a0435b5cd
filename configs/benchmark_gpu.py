"""Speed of the loop on a GPU, with the shapes of Gemma 2 and Gemma 3 pairs.

Command: python -m experiments.benchmark --config=configs/benchmark_gpu.py
Shows: in bfloat16, with random weights that are made on the device and a given
share of drafts kept: tokens a second, bytes of weights a second against the
device's own copying, compile seconds and peak memory. It takes 60 GB.
"""

import ml_collections

from configs import common


def _shape(family: str, **sizes) -> ml_collections.ConfigDict:
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
    # Tokens drafted per block, for the strict arms.
    gammas=(2, 4, 8),
    # Of token_v3, with trained weights; there are none here.
    leniences=(0.5,),
    # Of random prompts.
    prompt_tokens=64,
    # Of every answer.
    new_tokens=128,
  )
