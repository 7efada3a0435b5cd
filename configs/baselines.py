"""Speculative cascades compared with their baselines.

Command: python -m experiments.sweep --config=configs/baselines.py
Shows: on one bundled task, with gamma tuned for each point, token_v3, chow and
diff; the same rules without speculation (sequential, counted from their runs),
where diff is an oracle that reads the verifier at no cost; cascades of whole
answers; acceptance of every draft; strict decoding of the truncated verifier;
lenient speculative decoding; and block verification of speed and token_v3. It
takes about four minutes on two CPU cores, half of it for compilation.
"""

import ml_collections

from configs import common

_GAMMAS = (2, 4, 8)

# Optional fields of configs/common.py.
_OPTIONAL_FIELDS = ('verification', 'gate', 'bonus', 'drafts', 'mesh')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(*_OPTIONAL_FIELDS, lenience=(0.9,))


def sweep(add):
  """Adds curves; the strict point of each equals speed at lenience 0.

  Leniences are spread evenly over the rejection rate of each method, and those
  of whole answers over the share of answers by the drafter; both on training
  problems.
  """
  speed = (0.0, 0.8, 0.9, 0.95)
  token_v3 = (0.8, 0.9, 0.95, 0.99)
  chow = (0.25, 0.35, 0.4, 0.5)
  diff = (0.0, 0.05, 0.1, 0.2)
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='token_v3', lenience=token_v3, gamma=_GAMMAS)
  add(method='chow', lenience=chow, gamma=_GAMMAS)
  add(method='diff', lenience=diff, gamma=_GAMMAS)
  add(method='speed', lenience=speed, gamma=_GAMMAS)
  add(method='speed', lenience=speed, gamma=_GAMMAS, verification='block')
  add(method='token_v3', lenience=token_v3, gamma=_GAMMAS, verification='block')
  mean = (-1.0, 0.26, 0.29, 0.31, 0.33, 0.35, 0.39, 1.0)
  minimum = (-1.0, 0.906, 0.932, 0.946, 0.952, 0.959, 0.99, 1.0)
  add(method='sequence_mean', lenience=mean)
  add(method='sequence_least', lenience=minimum)
  add(method='always_accept', lenience=(), gamma=_GAMMAS, bonus='verifier')
  add(method='min_p', lenience=(0.1, 0.5), gamma=_GAMMAS)
  add(method='top_p', lenience=(0.1, 0.5), gamma=_GAMMAS)
  add(method='top_k', lenience=(1, 2), gamma=_GAMMAS)
  add(method='eta', lenience=(0.01, 0.1), gamma=_GAMMAS)
