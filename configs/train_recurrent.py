"""Trains a recurrent head for the bundled verifier, on its own answers.

Command: python -m experiments.train --config=configs/train_recurrent.py
Shows: in about ten minutes on two cores, a head under the workdir, and
how much of its drafts the verifier keeps on held-out problems.

`configs/train_recurrent.py:texts` trains a head for Gemma 3 270M that says the
tokens which are frequent in texts of yours, `--config.text=multi30k/train`;
with the `--workdir` of a training by `configs/train_drafter.py:greedy` it takes
from there what the verifier wrote.
"""

import ml_collections

from configs import train_drafter


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """The fields of a training on generated problems, or on texts.

  Args:
    argument: '', or 'texts'.

  Raises:
    ValueError: It is neither.
  """
  if argument not in ('', 'texts'):
    raise ValueError(f'argument: must be texts or empty, got {argument!r}.')
  return _of_texts() if argument else _of_problems()


def _of_problems() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.seed = 0
  # Of the head, and so of its folder.
  c.name = 'tiny-recurrent'
  # A name or a folder: who it learns from, and drafts for.
  c.verifier = 'tiny-verifier'
  # Shares of training problems, by task.
  c.mixture = dict(word_problems=0.65, numerals=0.35)
  # Answers that the verifier writes, and their most tokens.
  c.texts = 3000
  c.answer_length = 128
  # Tokens of a row, prompt included; longer texts are cut.
  c.row_length = 224
  # Residual layers of the head.
  c.layers = 2
  # Tokens drafted from each position.
  c.depth = 5
  # What is multiplied, while texts are read and learnt from.
  c.dtype = 'float32'
  # Of the training, and texts in each step.
  c.steps = 600
  c.rows = 8
  c.learning_rate = 0.02
  # Steps between checkpoints, and between lines of the log.
  c.checkpoint_every = 200
  c.log_every = 25
  # Held-out problems per task, and tokens per block, for its figures.
  c.eval_examples = 200
  c.eval_gamma = 4
  return c


def _of_texts() -> ml_collections.ConfigDict:
  c = train_drafter.get_config('greedy')
  for name in ('init', 'kl_fraction', 'sharpened', 'stored'):
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
