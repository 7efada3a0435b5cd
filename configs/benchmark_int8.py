"""Gemma 3 270M in eight bits: distance from floats.

Command: python -m experiments.benchmark --config=configs/benchmark_int8.py
Shows: KL divergence and agreement of int8 beside float32, with intervals.
`--config.path=multi30k/test_2016_flickr` gives the captions. Results are in
experiments/results/benchmark_int8; configs/benchmark_270m.py measures the
speed.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.benchmark(
    'eight_bits',
    verifier='gemma3-270m',
    task='multi30k_de_en',
    path='',
    shots=4,
    stop='\n\n',
    new_tokens=32,
    # Prompts that both models are compared on.
    num_compared=200,
  )
