"""Trains a recurrent head for a verifier, on its own answers.

Command: python -m experiments.train --config=configs/train_recurrent.py
Shows: the acceptance during training; then a folder under the workdir, and a
card with tokens per verifier call of held-out texts. By default it is a head
for Gemma 3 270M that drafts the frequent tokens of `--config.text`, which is
given as for configs/train_drafter.py.
"""

import ml_collections

from configs import train_drafter


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  c = train_drafter.get_config()
  for name in ('kl_fraction', 'sharpened', 'stored'):
    del c[name]
  # Answers of the verifier at each temperature, and training rows.
  c.answers, c.temperatures, c.texts = 1536, (1.0, 0.0), 4000
  with c.ignore_type():
    # Residual layers of the head.
    c.layers = 2
  # Name of the head and of its folder.
  c.name = 'gemma3-270m-recurrent'
  # Tokens drafted from each position.
  c.depth = 5
  # Steps of the training.
  c.steps = 200
  c.learning_rate = 0.02
  return c
