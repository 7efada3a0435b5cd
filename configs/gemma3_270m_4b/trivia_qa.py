"""TriviaQA with Gemma 3, 270M drafting for 4B.

Command: python -m experiments.sweep
  --config=configs/gemma3_270m_4b/trivia_qa.py
Shows: exact match against rejection rate and latency for the paper's rules,
from the verifier's to the drafter's.
Setting: As in the paper: gamma 1, temperature 1; with 1 worked example, of
which the paper's number is not known. The pair is newer than the paper.
configs/paper.py says what else departs from it.
Needs: 8.3 GB of weights, 10.6 GB in all at batch_size 64: one H100 (80 GB), for
about 1 h by estimate (86 points).
"""

from configs import paper

get_config, sweep = paper.setting('gemma3_270m_4b', 'trivia_qa')
