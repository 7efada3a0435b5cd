"""WMT14 English to German with Gemma 3, 1B drafting for 12B.

Command: python -m experiments.sweep
  --config=configs/gemma3_1b_12b/wmt14_en_de.py
Shows: BLEU against rejection rate and latency for the paper's rules, from the
verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1, 5 worked examples. The pair is
newer than the paper. configs/paper.py says what else departs from it.
Needs: 25.5 GB of weights, 41.2 GB in all at batch_size 32: one H100 (80 GB),
for about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_1b_12b', 'wmt14_en_de')
