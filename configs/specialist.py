"""A cascade of two models that know different things, on all that they know.

Command: python -m experiments.sweep --config=configs/specialist.py
Shows: in a few minutes, points that are far better than either model, for a
rule can take each one's word where it is surer. The verifier knows nothing of
Roman numerals, and the drafter, fine-tuned on them, forgot some of the rest.
The page says by how much: "When is a cascade better than both models".
"""

import ml_collections

from configs import common

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    *('verification', 'gate', 'bonus', 'mesh', 'split'),
    # configs/train_specialist.py makes it.
    drafter='tiny-specialist',
    # The verifier was trained on the first two, the drafter at last mostly on
    # the third.
    tasks=('word_problems', 'numerals', 'roman'),
    method='chow',
  )


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  The specialist is very sure of what it was taught, and the verifier now and
  then as sure of a wrong answer: chow, diff and opt bend near 0. token_v3 goes
  by the verifier alone, to which a Roman numeral is next to impossible.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  # Strict speculative decoding, which is the verifier's distribution.
  add(method='speed', lenience=(0.0,))
  add(method='chow', lenience=(-1.0, 0.002, 0.01, 0.03, 0.07, 0.15, 0.4, 1.0))
  diff = (-1.0, -0.35, -0.1, -0.01, 0.0, 0.01, 0.05, 0.2, 1.0)
  add(method='diff', lenience=diff)
  opt = (-_INF, -0.3, -0.1, -0.01, 0.01, 0.05, 0.1, 0.3, _INF)
  add(method='opt', lenience=opt)
  token_v3 = (-1.0, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 1.0)
  add(method='token_v3', lenience=token_v3)
