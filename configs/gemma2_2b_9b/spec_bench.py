"""Spec-Bench with Gemma 2, 2B drafting for 9B.

Command: python -m experiments.sweep
  --config=configs/gemma2_2b_9b/spec_bench.py
Shows: tokens per verifier call, and latency, for the paper's rules, by
lenience.
Setting: Spec-Bench is not among the paper's tasks: its prompts as they are,
first turns, and no quality. configs/paper.py says what else departs from it.
Needs: 23.7 GB of weights, 40.4 GB in all at batch_size 8: one H100 (80 GB), for
about 9 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma2_2b_9b', 'spec_bench')
