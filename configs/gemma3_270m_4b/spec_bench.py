"""Spec-Bench with Gemma 3, 270M drafting for 4B.

Command: python -m experiments.sweep
  --config=configs/gemma3_270m_4b/spec_bench.py
Shows: tokens per verifier call, and latency, for the paper's rules, by
lenience.
Setting: Spec-Bench is not among the paper's tasks: its prompts as they are,
first turns, and no quality. The pair is newer than the paper. configs/paper.py
says what else departs from it.
Needs: 8.3 GB of weights, 14.2 GB in all at batch_size 8: one H100 (80 GB), for
about 3 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_270m_4b', 'spec_bench')
