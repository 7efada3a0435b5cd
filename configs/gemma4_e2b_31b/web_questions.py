"""WebQuestions with Gemma 4, E2B drafting for 31B.

Command: python -m experiments.sweep
  --config=configs/gemma4_e2b_31b/web_questions.py
Shows: exact match against rejection rate and latency for the paper's rules,
from the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1, 1 worked example. The pair is
newer than the paper. configs/paper.py says what else departs from it.
Needs: 70.7 GB of weights, 82.4 GB in all at batch_size 64: one H200 (141 GB),
for about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma4_e2b_31b', 'web_questions')
