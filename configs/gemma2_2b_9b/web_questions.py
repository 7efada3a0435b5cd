"""WebQuestions with Gemma 2, 2B drafting for 9B.

Command: python -m experiments.sweep
  --config=configs/gemma2_2b_9b/web_questions.py
Shows: exact match against rejection rate and latency for the paper's rules,
from the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1, 1 worked example.
configs/paper.py says what else departs from it.
Needs: 23.7 GB of weights, 29.6 GB in all at batch_size 64: one H100 (80 GB),
for about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma2_2b_9b', 'web_questions')
