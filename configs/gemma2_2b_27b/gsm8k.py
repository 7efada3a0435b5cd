"""GSM8K with Gemma 2, 2B drafting for 27B.

Command: python -m experiments.sweep
  --config=configs/gemma2_2b_27b/gsm8k.py
Shows: exact match against rejection rate and latency for the paper's rules,
from the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1, 8 worked examples.
configs/paper.py says what else departs from it.
Needs: 59.7 GB of weights, 77.6 GB in all at batch_size 16: one H200 (141 GB),
for about 3 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma2_2b_27b', 'gsm8k')
