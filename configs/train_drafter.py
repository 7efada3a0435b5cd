"""Trains a drafter for a verifier that has none, of some of its own layers.

Command: python -m experiments.train --config=configs/train_drafter.py
Shows: how much of its drafts the verifier would keep, among the tokens that it
says, as it learns, on texts that are held out; then a folder that `load_model`
takes, and a card that says whether it pays: tokens per call of the verifier,
what a call costs, and the speed-up that these promise, by gamma. It wants the
texts, `--config.text=multi30k/train`, and for other texts than captions
`--config.tasks=()`. For Gemma 3 270M, the default, it takes some two and a half
hours on two CPU cores.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
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
    # From this share of the steps on, acceptance itself is the objective.
    turn=0.6,
    # At these temperatures; of several, their mean.
    sharpened=(1.0,),
    # What its tensors are rounded to.
    stored='bfloat16',
    # Held-out prompts, and tokens per block, for its figures.
    eval_examples=64,
    eval_gamma=4,
    checkpoint_every=250,
    log_every=50,
  )
