"""WMT14 English to German with Gemma 3, 270M drafting for 4B.

Command: python -m experiments.sweep
  --config=configs/gemma3_270m_4b/wmt14_en_de.py
Shows: BLEU against rejection rate and latency for the paper's rules, from the
verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1, 5 worked examples. The pair is
newer than the paper. configs/paper.py says what else departs from it.
Needs: 8.3 GB of weights, 14.3 GB in all at batch_size 32: one H100 (80 GB), for
about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_270m_4b', 'wmt14_en_de')
