"""Trains a drafter on, on what its verifier writes greedily too.

Command: python -m experiments.train --config=configs/train_drafter_greedy.py
Shows: as configs/train_drafter.py, from the drafter that one gave. A third of
what it learns from is now written at temperature 0, and acceptance is asked for
at temperature .3 as well, where it hangs on the likeliest token. It wants the
texts, `--config.text=multi30k/train`; the seed stays, and so do the texts that
are held out. It takes some forty minutes on two CPU cores.
"""

import ml_collections

from configs import train_drafter


def get_config() -> ml_collections.ConfigDict:
  c = train_drafter.get_config()
  del c.layers
  # The name or the folder of the drafter to go on from.
  c.init = f'runs/train_drafter/{c.name}'
  c.answers = 1536
  c.temperatures = (1.0, 0.0)
  c.texts = 4000
  c.turn = 0.0
  c.sharpened = (1.0, 0.3)
  c.steps = 1000
  c.learning_rate = 3e-4
  return c
