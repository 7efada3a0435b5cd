"""What the report of a large sweep costs: 200 points of 1,000 made-up examples.

Command: python -m experiments.benchmark --config=configs/benchmark_reports.py
Shows: seconds and memory of `experiments.report`, at most 60 s and 2 GB, and
the bytes of a record with its trace, at most 2 kB.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # What to time; a key of experiments.benchmarks.SUITES.
  c.suite = 'reports'
  # Of each of two tasks.
  c.examples = 1000
  # Of each of seven methods at two gammas.
  c.leniences = 7
  # Of an answer, about.
  c.tokens = 64
  # Of the made-up answers.
  c.seed = 0
  return c
