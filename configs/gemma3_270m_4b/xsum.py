"""XSum with Gemma 3, 270M drafting for 4B.

Command: python -m experiments.sweep
  --config=configs/gemma3_270m_4b/xsum.py
Shows: ROUGE-2 against rejection rate and latency for the paper's rules, from
the verifier's to the drafter's.
Setting: The paper has XSum for T5 alone: here with its setting for Gemma (gamma
1, temperature 1) and 1 worked example. The pair is newer than the paper.
configs/paper.py says what else departs from it.
Needs: 8.3 GB of weights, 16.1 GB in all at batch_size 8: one H100 (80 GB), for
about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_270m_4b', 'xsum')
