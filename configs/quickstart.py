"""The paper's methods from strict to drafter-only, on two bundled tasks.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: in about four minutes on a laptop, 51 points per task. Every curve starts
at the verifier's quality and ends at the drafter's; between, methods differ in
the quality that they lose. --config.temperature=0 decodes greedily. Committed
results, at temperature 1, are in experiments/results/quickstart.
"""

import ml_collections

from configs import common

_INF = float('inf')

# Optional fields of configs/common.py.
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
    # Fields that the command line can set, beside those of every sweep, such as
    # models, gamma, temperature and seed.
    *_OPTIONAL_FIELDS,
    # Tasks that the bundled pair was trained on.
    tasks=('word_problems', 'numerals'),
  )


def sweep(add):
  """Adds curves from strict to drafter-only; baselines have no lenience.

  Leniences are spread evenly over the rejection rate of each method, measured
  on training problems.
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
