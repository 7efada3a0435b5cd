"""What a method costs at Gemma's vocabulary, against two softmaxes of its size.

Command: python -m experiments.benchmark --config=configs/benchmark_methods.py
Shows: 16 sequences of 5 positions and 262,144 tokens in float32: the functions
of token_v3 within twice the time of two softmaxes, every method's temporaries
under 1.2 GB. Methods that sort the vocabulary are far slower. What it gave
once is in experiments/results/benchmark_methods.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.benchmark(
    'methods',
    # Sequences, drafted tokens of each, and tokens of the vocabulary.
    batch=16,
    gamma=4,
    vocab_size=262_144,
    # Methods to time; none means all.
    methods=(),
    # Of every method.
    lenience=0.3,
  )
