"""XSum with Gemma 2, 2B drafting for 27B.

Command: python -m experiments.sweep
  --config=configs/gemma2_2b_27b/xsum.py
Shows: ROUGE-2 against rejection rate and latency for the paper's rules, from
the verifier's to the drafter's.
Setting: The paper has XSum for T5 alone: here with its setting for Gemma (gamma
1, temperature 1) and 1 worked example. configs/paper.py says what else departs
from it.
Needs: 59.7 GB of weights, 83.5 GB in all at batch_size 8: one H200 (141 GB),
for about 2 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma2_2b_27b', 'xsum')
