"""MBPP with Gemma 3, 1B drafting for 12B.

Command: python -m experiments.sweep
  --config=configs/gemma3_1b_12b/mbpp.py
  --config.task.allow_code_execution=True
Shows: pass@1 against rejection rate and latency for the paper's rules, from the
verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1; with 3 worked examples, of
which the paper's number is not known. The pair is newer than the paper.
configs/paper.py says what else departs from it.
Needs: 25.5 GB of weights, 41.1 GB in all at batch_size 16: one H100 (80 GB),
for about 2 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_1b_12b', 'mbpp')
