"""Trains a recurrent head for Gemma 3 270M, on captions and its own answers.

Command: python -m experiments.train --config=configs/train_recurrent_270m.py
Shows: a head under the workdir that says 12,000 tokens, and how much of its
drafts the verifier keeps on texts that are held out. It wants the texts,
`--config.text=multi30k/train`; with the `--workdir` of a training of
configs/train_drafter.py it takes from there what the verifier said. It has not
been run as a whole yet.
"""

import ml_collections

from configs import train_drafter


def get_config() -> ml_collections.ConfigDict:
  c = train_drafter.get_config()
  for name in ('turn', 'stored'):
    del c[name]
  with c.ignore_type():
    # Residual layers of the head.
    c.layers = 2
  # Of the head, and so of its folder.
  c.name = 'gemma3-270m-recurrent'
  # Tokens drafted from each position.
  c.depth = 5
  # Of the training, and texts in each step.
  c.steps = 1000
  c.learning_rate = 0.02
  return c
