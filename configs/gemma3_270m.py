"""A Gemma that Google trained, with a drafter made for it, on captions.

Command: python -m experiments.sweep --config=configs/gemma3_270m.py
Shows: all methods of the paper from strict to drafter-only, two of them with
block verification, what of a gain is truncation, and the plain ways, on German
captions of Multi30k put into English (BLEU), after four worked examples. It
wants `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`. It takes an hour and a half on
one CPU core.

`configs/gemma3_270m.py:t05` decodes at temperature .5, in half an hour, and
`configs/gemma3_270m.py:greedy` at temperature 0, in an hour, both with fewer
points. Greedily, truncation leaves the verifier's likeliest token, lenient
decoding keeps no other, and a block of certain tokens is judged as its tokens
are: these are strict decoding and left out. A greedy drafter is certain of its
token, so Diff, OPT and TokenV1 are one rule, up to what bfloat16 rounds.
"""

import ml_collections

from configs import common

# Temperature and number of captions by argument. Answers differ more in quality
# at low temperatures; the captions suffice for an interval within 2 BLEU.
_VARIANTS = {'': (1.0, 432), 't05': (0.5, 480), 'greedy': (0.0, 500)}

# Fields of configs/common.py that not every sweep has.
_OPTIONAL_FIELDS = (
  'verification',
  'gate',
  'bonus',
  'drafts',
  'mesh',
  'split',
  'dtype',
)


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """The fields of a variant.

  Args:
    argument: '', 't05' or 'greedy'.

  Raises:
    ValueError: There is no such variant.
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
    # configs/train_drafter.py makes it.
    drafter='gemma3-270m-multi30k-de-en',
    tasks=('multi30k_de_en',),
    task=dict(shots=4),
    num_examples=captions,
    temperature=temperature,
    # More rows at a time, and what is made of 262,144 tokens lies in no cache.
    batch_size=8,
    # On a core half again as fast as float32.
    dtype='bfloat16',
  )


def sweep(add, config):
  """Curves from strict to drafter-only, by temperature."""
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

  Strict is the same for all, and decoded once. The leniences in between were
  chosen on captions of the validation split, so that rejections are spread.
  """
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
  # One rule with Diff, as at its .1.
  add(method='opt', lenience=(0.1,))
  add(method='token_v1', lenience=(0.1,))
  add(method='token_v2', lenience=(0.1, 0.3, 0.5))
  add(method='sequence_mean', lenience=(0.4, 0.6))
  add(method='sequence_least', lenience=(0.8, 0.95))
  add(method='always_accept', lenience=(), bonus='verifier')
