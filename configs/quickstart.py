"""The paper's methods from strict to drafter-only, on two bundled tasks.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: in a few minutes on a laptop, 51 points a task: every curve starts at the
verifier's quality, at six to nine tenths of its latency as the machine has it,
and ends at the drafter's. What it gave once: experiments/results/quickstart.
"""

import ml_collections

from configs import common

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    # To be set on the command line, as all that configs/common.py has for every
    # sweep: models, gamma, temperature, seed and the like.
    *('verification', 'gate', 'bonus', 'drafts', 'mesh', 'shard_size'),
    *('split', 'clock'),
    # What the bundled pair was trained on.
    tasks=('word_problems', 'numerals'),
  )


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  The bundled verifier is rarely in doubt, so that what it thinks of a wrong
  draft is far below 1 %: the leniences crowd towards the drafter's end.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0))
  add(method='chow', lenience=(-1.0, 0.01, 0.05, 0.1, 0.2, 0.4, 1.0))
  add(method='diff', lenience=(-1.0, 0.0, 0.05, 0.1, 0.2, 0.4, 1.0))
  add(method='opt', lenience=(-_INF, -0.5, 0.0, 0.25, 0.5, 0.75, _INF))
  add(method='token_v1', lenience=(-1.0, 0.3, 0.6, 0.9, 0.99, 0.999, 1.0))
  add(method='token_v2', lenience=(-1.0, 0.3, 0.6, 0.9, 0.99, 0.999, 1.0))
  add(method='token_v3', lenience=(-1.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0))
