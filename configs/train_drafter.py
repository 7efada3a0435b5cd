"""Trains a drafter for a verifier that has none, of some of its own layers.

Command: python -m experiments.train --config=configs/train_drafter.py
Shows: how much of its drafts the verifier would keep, among the tokens that it
says, as it learns, on texts that are held out; then a folder that `load_model`
takes, and a card that says whether it pays: tokens per call of the verifier,
what a call costs, and the speed-up that these promise, by gamma. It wants the
texts, `--config.text=multi30k/train`, and for other texts than captions
`--config.tasks=()`. For Gemma 3 270M, the default, it takes some two and a half
hours on two CPU cores.

`configs/train_drafter.py:greedy` goes on from the drafter that this gave, in
some forty minutes. A third of what it learns from is written at temperature 0,
and acceptance is asked for at temperature .3 as well, where it hangs on the
likeliest token. The seed stays, and so do the texts that are held out.
"""

import ml_collections

from configs import common


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """The fields of a training from the verifier's layers, or from a drafter.

  Args:
    argument: '', or 'greedy' to go on from a drafter.

  Raises:
    ValueError: It is neither.
  """
  if argument not in ('', 'greedy'):
    raise ValueError(f'argument: must be greedy or empty, got {argument!r}.')
  c = _new()
  if argument == 'greedy':
    del c.layers
    # The name or the folder of the drafter to go on from.
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
  return common.training(
    # Of the drafter, and so of its folder.
    name='gemma3-270m-multi30k-de-en',
    # A name, folder or file: who it learns from, and drafts for.
    verifier='gemma3-270m',
    # The verifier's that it begins as; one must attend to the whole text.
    layers=(0, 17),
    # Tokens that it says: the most frequent ones of the answers.
    vocabulary=12_000,
    # Where the texts lie; and which published sets they are, () for a file with
    # a text a line, or with JSON objects of prompt and answer.
    text='',
    tasks=('multi30k_de_en',),
    # Documents that it never learns from.
    held_out=500,
    # Answers that the verifier writes for it, and their most tokens; worked
    # examples before each.
    answers=4000,
    answer_length=48,
    shots=4,
    # At which they are written, in turn.
    temperatures=(1.0,),
    # Rows of texts, their tokens, and how many a step has.
    texts=12_000,
    row_length=256,
    rows=8,
    steps=3300,
    learning_rate=1e-3,
    # What is multiplied, while texts are read and learnt from; sums, norms and
    # the optimizer are float32.
    dtype='bfloat16',
    # Share of the steps that minimize KL(p, q); the rest maximize acceptance.
    kl_fraction=0.6,
    # At these temperatures; of several, their mean.
    sharpened=(1.0,),
    # What its tensors are rounded to; 'int8' takes half of the room.
    stored='bfloat16',
    # Held-out prompts, and tokens per block, for its figures.
    eval_examples=64,
    eval_gamma=4,
    checkpoint_every=250,
    log_every=50,
  )
