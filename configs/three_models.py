"""Three models: what a drafter gains that is drafted for itself.

Command: python -m experiments.sweep --config=configs/three_models.py
Shows: two gates, one for the drafter and what drafts for it and one for the
verifier and both, as PyramidSD has them, on word problems; beside strict
decoding by the three and two rules of the paper.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    *('inner_lenience', 'inner_gamma'),
    drafter='tiny-drafter+ngram:2',
    inner_method='fuzzy_kl_qp',
    num_examples=200,
  )


def sweep(add):
  """Strict decoding and three rules; a chain does not answer alone."""
  add(method='verifier_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='fuzzy_kl_qp', lenience=(0.1, 0.3, 1.0))
  add(method='token_v3', lenience=(0.5, 0.9))
  add(method='opt', lenience=(0.1, 0.3))
