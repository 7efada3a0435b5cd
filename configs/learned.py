"""A learned deferral rule compared with the rules that it should beat.

Command: python -m experiments.sweep --config=configs/learned.py
Shows: on word problems, in a few minutes on two CPU cores, the bundled learned
rule, OPT, from which its training starts, and the token rules, at leniences
that were chosen on training problems. The rule was not trained on these
problems. To use a rule of another pair, name it as the method of a sweep of
that pair: `--config=configs/gemma3_270m.py --config.method=learned:FOLDER`.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  # The seed selects problems on which no choice was made.
  return common.sweep('split', 'clock', num_examples=300, seed=3, clock=0)


def sweep(add):
  """Adds curves with leniences spread evenly over the rejection rate."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='opt', lenience=(-0.05, 0.0, 0.05, 0.1, 0.3))
  add(method='learned', lenience=(-0.5, -0.3, -0.1, 0.1, 0.3))
  add(method='token_v2', lenience=(0.6, 0.7, 0.8))
  add(method='token_v3', lenience=(0.8, 0.9, 0.95, 0.99))
