"""Spec-Bench with Gemma 4, E2B drafting for 31B.

Command: python -m experiments.sweep
  --config=configs/gemma4_e2b_31b/spec_bench.py
Shows: tokens per verifier call, and latency, for the paper's rules, by
lenience.
Setting: Spec-Bench is not among the paper's tasks: its prompts as they are,
first turns, and no quality. The pair is newer than the paper. configs/paper.py
says what else departs from it.
Needs: 70.7 GB of weights, 104.6 GB in all at batch_size 8: one H200 (141 GB),
for about 16 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma4_e2b_31b', 'spec_bench')
