"""Trains a drafter from some layers of a verifier that has no drafter.

Command: python -m experiments.train --config=configs/train_drafter.py
Shows: the expected acceptance on held-out texts during training, over the
drafter's vocabulary; then a folder that `load_model` takes, and a card with
tokens per verifier call, and the cost of a drafter call. The texts are given by
`--config.text=multi30k/train.jsonl`; texts that are not a published set also
need `--config.tasks='()'`. For Gemma 3 270M, the default, it takes two and a
half hours on two CPU cores.

`configs/train_drafter.py:greedy` continues that drafter for greedy decoding, in
forty minutes. A third of its training texts are answers at temperature 0, and
the acceptance loss is also taken at temperature 0.3, where the most probable
token decides. With the same seed, the same texts are held out.
"""

import ml_collections

from configs import common


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a training from layers, or from a drafter.

  Args:
    argument: '', or 'greedy' to continue a drafter.

  Raises:
    ValueError: The argument is unknown.
  """
  if argument not in ('', 'greedy'):
    raise ValueError(f'argument: must be greedy or empty, got {argument!r}.')
  c = _new()
  if argument == 'greedy':
    del c.layers
    # Name or folder of the drafter to continue.
    c.init = f'runs/train_drafter/{c.name}'
    c.answers = 1536
    c.temperatures = (1.0, 0.0)
    c.texts = 4000
    c.kl_fraction = 0.0
    c.sharpened = (1.0, 0.3)
    c.steps = 1000
    c.learning_rate = 3e-4
  return c


def _new() -> ml_collections.ConfigDict:
  """Returns the fields of a training from layers of the verifier."""
  return common.training(
    # Name of the drafter and of its folder.
    name='gemma3-270m-multi30k-de-en',
    # Name, folder or file of the verifier, which the drafter learns from.
    verifier='gemma3-270m',
    # Layers of the verifier that the drafter starts from; at least one must
    # have global attention.
    layers=(0, 17),
    # Number of tokens in its vocabulary: the most frequent ones of the answers.
    vocabulary=12_000,
    # Path of the texts, and their published sets; () for a file with rows of
    # prompt and answer (or reference).
    text='',
    tasks=('multi30k_de_en',),
    # Number of documents that are held out.
    held_out=500,
    # Number of answers that the verifier writes, their largest length, and
    # worked examples before each.
    answers=4000,
    answer_length=48,
    shots=4,
    # Temperatures of these answers, in turn.
    temperatures=(1.0,),
    # Number of training rows, their length, and rows per step.
    texts=12_000,
    row_length=256,
    rows=8,
    steps=3300,
    learning_rate=1e-3,
    # Dtype of products in reading and training; sums, norms and the optimizer
    # are float32.
    dtype='bfloat16',
    # Share of the steps that minimize KL(p, q); the rest maximize acceptance.
    kl_fraction=0.6,
    # Temperatures at which the acceptance loss is taken and averaged.
    sharpened=(1.0,),
    # Type that tensors are rounded to; 'int8' takes half of the space.
    stored='bfloat16',
    # Held-out prompts, and gamma, of the evaluation.
    eval_examples=64,
    eval_gamma=4,
    checkpoint_every=250,
    log_every=50,
  )
