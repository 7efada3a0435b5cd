"""A Gemma that Google trained, with a drafter made for it, on captions.

Command: python -m experiments.sweep --config=configs/gemma3_270m.py
Shows: all methods of the paper from strict to drafter-only, two of them with
block verification, what of a gain is truncation, and the plain ways, on German
captions of Multi30k put into English (BLEU), after four worked examples. It
wants `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`. A temperature a run,
`--config.temperature=0`, 0.5 or 1. It has not been run as a whole yet.
"""

import ml_collections

from configs import common

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    *('verification', 'gate', 'bonus', 'drafts', 'mesh', 'split', 'dtype'),
    verifier='gemma3-270m',
    # configs/train_drafter.py makes it.
    drafter='gemma3-270m-multi30k-de-en',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    num_examples=400,
  )


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  Leniences are a first guess, by how others fared with another drafter.
  """
  speed = (0.0, 0.3, 0.6, 0.9, 1.0)
  token_v3 = (-1.0, 0.5, 0.8, 0.95, 1.0)
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=speed)
  add(method='chow', lenience=(-1.0, 0.2, 0.4, 0.6, 1.0))
  add(method='diff', lenience=(-1.0, 0.0, 0.1, 0.3, 1.0))
  add(method='opt', lenience=(-_INF, 0.0, 0.2, 0.5, _INF))
  add(method='token_v1', lenience=(-1.0, 0.1, 0.3, 0.6, 1.0))
  add(method='token_v2', lenience=(-1.0, 0.5, 0.8, 0.95, 1.0))
  add(method='token_v3', lenience=token_v3)
  # No better law, only more tokens of a block.
  add(method='speed', lenience=speed[:-1], verification='block')
  add(method='token_v3', lenience=token_v3[1:-1], verification='block')
  # Strict decoding of a verifier that is cut: what of token_v3 is that?
  add(method='min_p', lenience=(0.1, 0.5))
  add(method='top_p', lenience=(0.2, 0.5))
  add(method='top_k', lenience=(1, 4))
  add(method='eta', lenience=(0.01, 0.1))
  # Whole answers, and every draft.
  add(method='sequence_mean', lenience=(0.4, 0.5, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.9, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')
