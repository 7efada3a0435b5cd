"""A cascade of two models that know different things, on all that they know.

Command: python -m experiments.sweep --config=configs/specialist.py
Shows: in a few minutes, points that are far better than either model, for a
rule can take each one's word where it is surer. The verifier knows nothing of
Roman numerals, and the drafter, fine-tuned on them, forgot some of the rest.
The page says by how much: "Gain over both models".
"""

import ml_collections

from configs import common

_INF = float('inf')

# Fields of configs/common.py that not every sweep has.
_OPTIONAL_FIELDS = ('verification', 'gate', 'bonus', 'mesh', 'split')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    *_OPTIONAL_FIELDS,
    # configs/train_specialist.py makes it.
    drafter='tiny-specialist',
    # The verifier was trained on the first two, the drafter at last mostly on
    # the third.
    tasks=('word_problems', 'numerals', 'roman'),
    method='chow',
  )


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  Leniences are spread over the share of drafts that each method rejects, on
  training problems. The specialist is very sure of what it was taught: diff and
  opt bend near 0. token_v3 goes by the verifier alone, to which a Roman numeral
  is next to impossible.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  # Strict speculative decoding, which is the verifier's distribution.
  add(method='speed', lenience=(0.0,))
  add(method='chow', lenience=(-1.0, 0.05, 0.15, 0.25, 0.3, 0.35, 0.4, 1.0))
  diff = (-1.0, -0.1, -0.03, 0.0, 0.02, 0.05, 0.1, 0.4, 1.0)
  add(method='diff', lenience=diff)
  opt = (-_INF, -0.1, -0.03, 0.0, 0.03, 0.1, 0.2, 0.5, _INF)
  add(method='opt', lenience=opt)
  token_v3 = (-1.0, 0.8, 0.9, 0.95, 0.99, 0.9999, 0.999999, 1.0)
  add(method='token_v3', lenience=token_v3)
