"""A rule that was learnt, beside the rules that it is to beat.

Command: python -m experiments.sweep --config=configs/learned.py
Shows: on word problems, in some minutes on two CPU cores, the bundled learned
rule, OPT, which it began as, and the token rules, at several leniences. Those
were chosen on training problems, and no problem here was learnt from.
A rule of another pair is a method of its sweeps, as in
`--config=configs/gemma3_270m.py --config.method=learned:FOLDER`.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  # Problems of their own: no choice was made on these.
  return common.sweep('split', 'clock', num_examples=300, seed=3, clock=0)


def sweep(add):
  """Curves; leniences are spread over the share of drafts that is rejected."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='opt', lenience=(-0.05, 0.0, 0.05, 0.1, 0.3))
  add(method='learned', lenience=(-0.5, -0.3, -0.1, 0.1, 0.3))
  add(method='token_v2', lenience=(0.6, 0.7, 0.8))
  add(method='token_v3', lenience=(0.8, 0.9, 0.95, 0.99))
