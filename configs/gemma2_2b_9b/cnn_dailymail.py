"""CNN/DailyMail with Gemma 2, 2B drafting for 9B.

Command: python -m experiments.sweep
  --config=configs/gemma2_2b_9b/cnn_dailymail.py
Shows: ROUGE-2 against rejection rate and latency for the paper's rules, from
the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1; with 1 worked example, of
which the paper's number is not known. configs/paper.py says what else departs
from it.
Needs: 23.7 GB of weights, 45.9 GB in all at batch_size 8: one H100 (80 GB), for
about 3 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma2_2b_9b', 'cnn_dailymail')
