"""Trains a drafter on, on what its verifier writes greedily too.

Command: python -m experiments.train --config=configs/train_drafter_greedy.py
Shows: as configs/train_drafter.py, from the drafter that one gave. Half of what
it learns from is now written at temperature 0, and acceptance is asked for at
temperature .3 as well, where it hangs on the likeliest token. It wants the
texts, `--config.text=multi30k/train`; the seed stays, and so do the texts that
are held out. It takes some two hours on two CPU cores.
"""

import ml_collections

from configs import train_drafter


def get_config() -> ml_collections.ConfigDict:
  c = train_drafter.get_config()
  del c.layers
  # The name or the folder of the drafter to go on from.
  c.init = f'runs/train_drafter/{c.name}'
  c.answers = 4608
  # Two of three groups of answers are greedy.
  c.temperatures = (0.0, 1.0, 0.0)
  c.texts = 6000
  c.turn = 0.0
  c.sharpened = (1.0, 0.3)
  c.steps = 2400
  c.learning_rate = 5e-4
  # Nearly all that are held out: 64 once said .14 tokens a call too many.
  c.eval_examples = 480
  return c
