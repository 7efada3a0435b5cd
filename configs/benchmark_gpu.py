"""Speed of the loop on a GPU, with the shapes of Gemma 2 and Gemma 3 pairs.

Command: python -m experiments.benchmark --config=configs/benchmark_gpu.py
Shows: in bfloat16, with random weights that are made on the device and a given
share of drafts kept: tokens a second, bytes of weights a second against the
device's own copying, compile seconds and peak memory. It takes 60 GB.
"""

import ml_collections

from configs import common


def _shape(family: str, *sizes, **more) -> ml_collections.ConfigDict:
  return common.shape(family, *sizes, 256, 262_144, **more)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.decoding(
    dtype='bfloat16',
    pairs=(
      common.pair(
        _shape('gemma2', 3584, 14336, 42, 16, 8),
        _shape('gemma2', 2304, 9216, 26, 8, 4),
        'gemma2 2B to 9B',
      ),
      common.pair(
        _shape('gemma3_text', 2560, 10240, 34, 8, 4, sliding_window=1024),
        _shape('gemma3_text', 640, 2048, 18, 4, 1, sliding_window=512),
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
