"""A cascade of two models that were trained on different tasks, on all tasks.

Command: python -m experiments.sweep --config=configs/specialist.py
Shows: in a few minutes, points that are far better than either model, since a
rule can follow the model that is more certain. The verifier was not trained on
Roman numerals; the drafter was fine-tuned on them and forgot some of the other
tasks. The quality of all is the mean of the tasks in `summary.csv`.
"""

import ml_collections

from configs import common

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    *'verification gate bonus mesh split'.split(),
    # The bundled drafter, fine-tuned on Roman numerals.
    drafter='tiny-specialist',
    # The verifier was trained on the first two tasks, the drafter in the end
    # mostly on the third.
    tasks=('word_problems', 'numerals', 'roman'),
    method='chow',
  )


def sweep(add):
  """Adds curves from strict to drafter-only; baselines have no lenience.

  Leniences are spread evenly over the rejection rate on training problems. The
  specialist is nearly certain on its own task, so that diff and opt change most
  near 0. token_v3 reads the verifier alone, which gives a Roman numeral almost
  no probability.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='chow', lenience=(-1.0, 0.05, 0.15, 0.25, 0.3, 0.35, 0.4, 1.0))
  diff = (-1.0, -0.1, -0.03, 0.0, 0.02, 0.05, 0.1, 0.4, 1.0)
  add(method='diff', lenience=diff)
  opt = (-_INF, -0.1, -0.03, 0.0, 0.03, 0.1, 0.2, 0.5, _INF)
  add(method='opt', lenience=opt)
  token_v3 = (-1.0, 0.8, 0.9, 0.95, 0.99, 0.9999, 0.999999, 1.0)
  add(method='token_v3', lenience=token_v3)
