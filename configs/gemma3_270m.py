"""A Gemma that Google trained, with a drafter made for it, on captions.

Command: python -m experiments.sweep --config=configs/gemma3_270m.py
Shows: all methods of the paper from strict to drafter-only, two of them with
block verification, what of a gain is truncation, and the plain ways, on German
captions of Multi30k put into English (BLEU), after four worked examples. It
wants `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`. It takes an hour and a half on
one CPU core. gemma3_270m_cooler.py and gemma3_270m_greedy.py are the same at
temperature .5 and 0, with fewer points.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    *('verification', 'gate', 'bonus', 'drafts', 'mesh', 'split', 'dtype'),
    verifier='gemma3-270m',
    # configs/train_drafter.py makes it.
    drafter='gemma3-270m-multi30k-de-en',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    # Enough that an interval is within 2 BLEU.
    num_examples=432,
    # More rows at a time, and what is made of 262,144 tokens lies in no cache.
    batch_size=8,
    # On a core half again as fast as float32.
    dtype='bfloat16',
  )


def sweep(add):
  """Curves from strict to drafter-only; baselines have no lenience.

  Strict is the same for all, and decoded once. The leniences in between were
  chosen on captions of the validation split, so that rejections are spread.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0, 0.3, 0.6, 0.9))
  add(method='token_v3', lenience=(0.3, 0.5, 0.8, 0.95))
  add(method='chow', lenience=(0.2, 0.4, 0.6, 0.8))
  add(method='diff', lenience=(-0.2, -0.1, 0.0, 0.1))
  add(method='opt', lenience=(-0.1, 0.0, 0.1, 0.3))
  add(method='token_v1', lenience=(0.0, 0.1, 0.3, 0.5))
  add(method='token_v2', lenience=(0.1, 0.3, 0.5, 0.8))
  # No better law, only more tokens of a block.
  add(method='speed', lenience=(0.0, 0.3, 0.6), verification='block')
  add(method='token_v3', lenience=(0.3, 0.5, 0.8), verification='block')
  # Strict decoding of a verifier that is cut: what of token_v3 is that?
  add(method='min_p', lenience=(0.1, 0.5))
  add(method='top_p', lenience=(0.5,))
  add(method='top_k', lenience=(4,))
  add(method='eta', lenience=(0.05,))
  # Whole answers, and every draft.
  add(method='sequence_mean', lenience=(0.4, 0.5, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.9, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')
