"""What a method costs at Gemma's vocabulary, against two softmaxes of its size.

Command: python -m experiments.benchmark --config=configs/benchmark_methods.py
Shows: 16 sequences of 5 positions and 262,144 tokens in float32: the functions
of token_v3 within twice the time of two softmaxes, every method's temporaries
under 1.2 GB. Methods that sort the vocabulary are far slower. What it gave
once is in experiments/results/benchmark_methods.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # What to time; a key of experiments.benchmark.SUITES.
  c.suite = 'methods'
  # Sequences, drafted tokens of each, and tokens of the vocabulary.
  c.batch = 16
  c.gamma = 4
  c.vocab_size = 262_144
  # Methods to time; none means all.
  c.methods = ()
  # Of every method.
  c.lenience = 0.3
  # Turns of each arm, after one that is not counted.
  c.repeats = 5
  # Of the random distributions.
  c.seed = 0
  return c
