"""Trains a recurrent head for the bundled verifier, on its own answers.

Command: python -m experiments.train --config=configs/train_recurrent.py
Shows: in about ten minutes on two cores, a head under the workdir, and
its acceptance rate on held-out problems.

`configs/train_recurrent.py:texts` trains a head for Gemma 3 270M that drafts
the frequent tokens of your texts, `--config.text=multi30k/train.jsonl`.
"""

import ml_collections

from configs import train_drafter


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a training on generated problems, or on texts.

  Args:
    argument: '', or 'texts'.

  Raises:
    ValueError: The argument is unknown.
  """
  if argument not in ('', 'texts'):
    raise ValueError(f'argument: must be texts or empty, got {argument!r}.')
  return _of_texts() if argument else _of_problems()


def _of_problems() -> ml_collections.ConfigDict:
  """Returns the fields of a training on generated problems."""
  c = ml_collections.ConfigDict()
  c.seed = 0
  # Name of the head and of its folder.
  c.name = 'tiny-recurrent'
  # Name or folder of the verifier, which the head learns from and drafts for.
  c.verifier = 'tiny-verifier'
  # Shares of training problems, by task.
  c.mixture = dict(word_problems=0.65, numerals=0.35)
  # Number of answers that the verifier writes, and their largest length.
  c.texts = 3000
  c.answer_length = 128
  # Tokens of a row, prompt included; longer texts are cut.
  c.row_length = 224
  # Residual layers of the head.
  c.layers = 2
  # Tokens drafted from each position.
  c.depth = 5
  # Dtype of products while the verifier reads and the head is trained.
  c.dtype = 'float32'
  # Steps of the training, texts per step, and learning rate.
  c.steps = 600
  c.rows = 8
  c.learning_rate = 0.02
  # Steps between checkpoints, and between lines of the log.
  c.checkpoint_every = 200
  c.log_every = 25
  # Held-out problems per task, and gamma, of the evaluation.
  c.eval_examples = 200
  c.eval_gamma = 4
  return c


def _of_texts() -> ml_collections.ConfigDict:
  """Returns the fields of a training on texts."""
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
  c.eval_examples = 64
  return c
