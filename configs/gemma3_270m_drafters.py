"""Gemma 3 270M with drafters of other kinds, on captions.

Command: python -m experiments.sweep --config=configs/gemma3_270m_drafters.py
Shows: strict decoding and three rules on German captions of Multi30k, as
configs/gemma3_270m.py but fewer, with the verifier's own first layers for a
drafter; with `--config.drafter=ngram` with what stands in the text already, and
with a folder of configs/train_recurrent_270m.py with a recurrent head. It wants
the captions, `--config.task.path=multi30k/test_2016_flickr`, and takes five to
twenty minutes on one CPU core.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    *('split', 'dtype'),
    verifier='gemma3-270m',
    drafter='self:6',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    num_examples=104,
    batch_size=8,
    dtype='bfloat16',
  )


def sweep(add):
  """Strict decoding, and rules that need nothing but q and p."""
  add(method='verifier_only', lenience=())
  add(method='speed', lenience=(0.0, 0.6))
  add(method='token_v3', lenience=(0.5, 0.8, 0.95))
  add(method='opt', lenience=(0.0, 0.2))
