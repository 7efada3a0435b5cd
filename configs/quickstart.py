"""The paper's methods from strict to drafter-only, on two bundled tasks.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: in some four minutes on a laptop, 51 points a task: every curve starts at
the verifier's quality and ends at the drafter's, and how the methods differ is
what they lose on the way; with --config.temperature=0 the same, greedily. What
it gave once at temperature 1: experiments/results/quickstart.
"""

import ml_collections

from configs import common

_INF = float('inf')

# Fields of configs/common.py that not every sweep has.
_OPTIONAL_FIELDS = (
  'verification',
  'gate',
  'bonus',
  'drafts',
  'mesh',
  'shard_size',
  'split',
  'clock',
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    # To be set on the command line, as all that configs/common.py has for every
    # sweep: models, gamma, temperature, seed and the like.
    *_OPTIONAL_FIELDS,
    # What the bundled pair was trained on.
    tasks=('word_problems', 'numerals'),
  )


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  Leniences are spread over what they do: over the share of drafts that each
  method rejects, measured on training problems, not on those reported.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0, 0.6, 0.8, 0.9, 0.95, 0.999, 1.0))
  add(method='chow', lenience=(-1.0, 0.25, 0.35, 0.4, 0.5, 0.7, 1.0))
  add(method='diff', lenience=(-1.0, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0))
  add(method='opt', lenience=(-_INF, 0.0, 0.1, 0.2, 0.5, 0.85, _INF))
  add(method='token_v1', lenience=(-1.0, 0.0, 0.1, 0.5, 0.7, 0.9, 1.0))
  add(method='token_v2', lenience=(-1.0, 0.6, 0.7, 0.8, 0.95, 0.999, 1.0))
  add(method='token_v3', lenience=(-1.0, 0.8, 0.9, 0.95, 0.99, 0.9999, 1.0))
