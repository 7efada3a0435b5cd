"""CNN/DailyMail with Gemma 3, 1B drafting for 12B.

Command: python -m experiments.sweep
  --config=configs/gemma3_1b_12b/cnn_dailymail.py
Shows: ROUGE-2 against rejection rate and latency for the paper's rules, from
the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1; with 1 worked example, of
which the paper's number is not known. The pair is newer than the paper.
configs/paper.py says what else departs from it.
Needs: 25.5 GB of weights, 46.2 GB in all at batch_size 8: one H100 (80 GB), for
about 3 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_1b_12b', 'cnn_dailymail')
