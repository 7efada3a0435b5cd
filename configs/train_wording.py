"""Trains a pair that disagrees about wording, and at times about content.

Command: python -m experiments.train --config=configs/train_wording.py
Shows: one tokenizer and two models in Hugging Face layout under the workdir,
and their held-out figures. The verifier learns from an author who likes the
first way of saying a thing, the drafter from one who likes the last, and it is
too small for the harder content: so they disagree as models of different makers
do, often about words, which harms nothing, and now and then about numbers. It
takes an hour or two on two CPU cores.
"""

import ml_collections

from configs import common

# Of the training of either model.
_STEPS = dict(steps=2000, rows=18, learning_rate=0.02)


def get_config() -> ml_collections.ConfigDict:
  return common.training(
    # Longer than any problem; less is left empty of a long row.
    row_length=256,
    # Shares of training problems, by task.
    mixture=dict(word_problems=0.5, rankings=0.3, numerals=0.2),
    # Pieces of the tokenizer; 256 of them are single bytes.
    vocab_size=768,
    # Problems the tokenizer is trained on, per task.
    tokenizer_examples=8000,
    eval_tasks=('word_problems', 'rankings', 'numerals'),
    models=dict(
      wording_verifier=dict(
        **_STEPS,
        # Who writes what it learns from; one of cascades/tasks/wording.py. The
        # two disagree about wording, as models of different makers do.
        author='plain',
        config=common.small_model(
          hidden_size=256,
          intermediate_size=768,
          num_hidden_layers=6,
          layer_types=['sliding_attention', 'full_attention'] * 3,
          num_attention_heads=4,
          num_key_value_heads=1,
          head_dim=64,
          query_pre_attn_scalar=64,
        ),
      ),
      wording_drafter=dict(
        **_STEPS,
        author='ornate',
        config=common.small_model(
          hidden_size=64,
          intermediate_size=256,
          num_hidden_layers=2,
          layer_types=['sliding_attention', 'full_attention'],
          num_attention_heads=4,
          num_key_value_heads=1,
          head_dim=16,
          query_pre_attn_scalar=16,
        ),
      ),
    ),
  )
