"""Trains a recurrent head for Gemma 3 270M, on captions and its own answers.

Command: python -m experiments.train --config=configs/train_recurrent_270m.py
Shows: a head under the workdir that says up to 12,000 tokens, and how much of
its drafts the verifier keeps on texts that are held out. It wants the texts,
`--config.text=multi30k/train`; with the `--workdir` of a training of
configs/train_drafter_greedy.py it takes from there what the verifier said.
configs/gemma3_270m_drafters.py says what comes of it.
"""

import ml_collections

from configs import train_drafter_greedy


def get_config() -> ml_collections.ConfigDict:
  c = train_drafter_greedy.get_config()
  for name in ('init', 'turn', 'sharpened', 'stored'):
    del c[name]
  with c.ignore_type():
    # Residual layers of the head.
    c.layers = 2
  # Of the head, and so of its folder.
  c.name = 'gemma3-270m-recurrent'
  # Tokens drafted from each position.
  c.depth = 5
  # Of the training, and texts in each step.
  c.steps = 200
  c.learning_rate = 0.02
  c.eval_examples = 64
  return c
