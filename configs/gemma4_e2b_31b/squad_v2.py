"""SQuAD 2.0 with Gemma 4, E2B drafting for 31B.

Command: python -m experiments.sweep
  --config=configs/gemma4_e2b_31b/squad_v2.py
Shows: F1 against rejection rate and latency for the paper's rules, from the
verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1; with 2 worked examples, of
which the paper's number is not known. The pair is newer than the paper.
configs/paper.py says what else departs from it.
Needs: 70.7 GB of weights, 104.7 GB in all at batch_size 16: one H200 (141 GB),
for about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma4_e2b_31b', 'squad_v2')
