"""Latency of cascades at the verifier's quality, with gamma tuned for each.

Command: python -m experiments.sweep --config=configs/tuned_gamma.py
Shows: in about eight minutes on two CPU cores, strict decoding and the best
rules, on 1,000 word problems, which suffice to detect a difference of 0.03 in
quality. The page tunes gamma for each point: strict decoding is fastest with
short blocks, and a rule that accepts most drafts with long ones.
"""

import ml_collections

from configs import common

_GAMMAS = (4, 8, 12)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  # The seed selects problems on which no choice was made.
  return common.sweep('split', num_examples=1000, seed=1)


def sweep(add):
  """Adds the rules and leniences that were best on training problems."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,), gamma=(3, 4, 6))
  add(method='opt', lenience=(0.1,), gamma=_GAMMAS)
  add(method='token_v2', lenience=(0.6, 0.7), gamma=_GAMMAS)
  add(method='token_v3', lenience=(0.95,), gamma=_GAMMAS)
