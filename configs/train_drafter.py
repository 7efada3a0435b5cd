"""Trains a drafter from some layers of a verifier that has no drafter.

Command: python -m experiments.train --config=configs/train_drafter.py
Shows: the acceptance during training, over the drafter's vocabulary; then a
folder that `load_model` takes, and a card with tokens per verifier call of
held-out texts. The texts are given by `--config.text=multi30k/train.jsonl`;
texts that are not a published set also need `--config.tasks='()'`. For Gemma
3 270M, the default, it takes two and a half hours on two CPU cores.

For greedy decoding, let the verifier answer at temperature 0 too, and take the
acceptance loss also at temperature 0.3, where the most probable token decides:
`--config.temperatures='(1.0,0.0)' --config.sharpened='(1.0,0.3)'`.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return ml_collections.ConfigDict(
    dict(
      seed=0,
      # Name of the drafter and of its folder.
      name='gemma3-270m-multi30k-de-en',
      # Name, folder or file of the verifier, which the drafter learns from.
      verifier='gemma3-270m',
      # Layers of the verifier that the drafter starts from; at least one must
      # have global attention.
      layers=(0, 17),
      # Number of tokens in its vocabulary: the most frequent of the answers.
      vocabulary=12_000,
      # Path of the texts, and their published sets; () for a file with rows of
      # prompt and, if there is one, reference.
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
  )
