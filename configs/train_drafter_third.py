"""Trains a drafter on with a third layer, and stores it in 8 bits.

Command: python -m experiments.train --config=configs/train_drafter_third.py
Shows: as configs/train_drafter.py, from the drafter that
configs/train_drafter_greedy.py gave. Another of the verifier's layers is put
between its two, and two thirds of what the verifier writes are now written at
temperature 0. It wants the texts, `--config.text=multi30k/train`; the seed
stays, and so do the texts that are held out. It takes some two hours on two CPU
cores.
"""

import ml_collections

from configs import train_drafter_greedy


def get_config() -> ml_collections.ConfigDict:
  c = train_drafter_greedy.get_config()
  c.init = f'runs/train_drafter_greedy/{c.name}'
  # Before which of its layers, from 0, which of the verifier's.
  c.inserted = ((1, 5),)
  c.answers = 4608
  c.temperatures = (0.0, 1.0, 0.0)
  c.texts = 6000
  c.steps = 2000
  c.stored = 'int8'
  # All different, which fewer are not.
  c.eval_examples = 480
  return c
