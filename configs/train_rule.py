"""Trains a deferral rule for a pair, on the answers of its sweep.

Command: python -m experiments.train --config=configs/train_rule.py
Shows: the objective of Lemma 4 on held-out examples, for the learned rule and
the paper's rules, at several leniences (costs of a rejection); and a folder
that `--method=learned:FOLDER` takes. The rule is trained on a sweep of the pair
over training examples, which `workdirs` names: for the bundled pair `python -m
experiments.sweep --config=configs/quickstart.py --config.split=train
--config.tasks="('word_problems',)" --config.num_examples=150 --config.clock=0
--workdir=runs/quickstart_train`.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return ml_collections.ConfigDict(
    dict(
      # Name of the rule and of its folder.
      name='tiny-rule',
      # Workdirs of sweeps of one pair, with equal temperature and gate; several
      # are separated by commas.
      workdirs='runs/quickstart_train',
      # Score of the task that weights an answer; '' for its quality.
      score='',
      # Exponent of the score in the weight of an answer.
      sharpness=1.0,
      # Largest number of texts that are read, and texts read at a time.
      texts=3000,
      batch_size=16,
      # Share of the examples whose texts are held out.
      held_out=0.25,
      # Leniences that the objective is averaged over. Probabilities of a token
      # differ by at most TV between the models, so no rule defers from 1 on.
      leniences=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
      # In training, the rule defers with probability sigmoid((h - lam TV) /
      # softness).
      softness=0.02,
      # Coefficient of the squared distance from OPT's weights, for features of
      # variance 1.
      ridge=1e-6,
    )
  )
