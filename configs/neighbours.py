"""How far one decoding tells of its neighbours: leniences that are near.

Command: python -m experiments.sweep --config=configs/neighbours.py
Shows: in some five minutes on a laptop, four methods at five leniences that
differ little, on 300 word problems; then python -m experiments.reweight
--workdir=runs/neighbours estimates four of each from the one in the middle.
What it gave: experiments/results/README.md.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(num_examples=300, clock=0)


def sweep(add):
  """Around leniences of configs/quickstart.py."""
  add(method='verifier_only', lenience=())
  add(method='speed', lenience=(0.86, 0.88, 0.9, 0.92, 0.94))
  add(method='opt', lenience=(0.16, 0.18, 0.2, 0.22, 0.24))
  add(method='token_v2', lenience=(0.7, 0.75, 0.8, 0.85, 0.9))
  add(method='token_v3', lenience=(0.93, 0.94, 0.95, 0.96, 0.97))
