"""What Ray costs: points of the bundled pair, decoded here and by a worker.

Command: python -m experiments.benchmark --config=configs/benchmark_launchers.py
Shows: seconds of a point by each launcher, in turns, and Ray's by local: at
most 1.05 for points of 10 s and more. The worker has all of the machine's
cores, as this process has.
"""

import os

from configs import quickstart


def get_config():
  c = quickstart.get_config()
  # What to time; a key of experiments.benchmarks.SUITES.
  c.suite = 'launchers'
  c.tasks = ('word_problems',)
  # Examples of a point: enough for more than 10 s.
  c.num_examples = 256
  # Of the one curve that is timed.
  c.method = 'token_v3'
  c.lenience = (-1.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
  # Turns that are timed, after one that warms up.
  c.repeats = 5
  c.ray.cpus = os.cpu_count()
  return c
