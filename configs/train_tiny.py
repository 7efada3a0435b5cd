"""Trains the bundled pair, which disagrees about phrasing and about content.

Command: python -m experiments.train --config=configs/train_tiny.py
Shows: one tokenizer and two models in Hugging Face layout under the workdir,
and their held-out figures. The verifier learns a style that prefers the first
of several phrasings, the drafter a style that prefers the last, and the drafter
is too small for the harder content. They therefore disagree as models of
different makers do: often about words, which is harmless, and sometimes about
numbers. It takes one to two hours on two CPU cores.
"""

import ml_collections

from configs import common

# Fields of both models: rows per step, learning rate, and the type that tensors
# are rounded to in the end, which halves the files.
_STEPS = dict(rows=18, learning_rate=0.02, stored='bfloat16')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.training(
    # Longer than any problem; packing leaves less of a long row empty.
    row_length=256,
    # Shares of training problems, by task.
    mixture=dict(word_problems=0.75, numerals=0.25),
    # Tokens of the tokenizer; 256 of them are single bytes.
    vocab_size=768,
    # Problems the tokenizer is trained on, per task.
    tokenizer_examples=8000,
    eval_tasks=('word_problems', 'numerals'),
    models=dict(
      tiny_verifier=dict(
        **_STEPS,
        steps=2200,
        # Style of the training answers; see experiments/tasks/generated.py. It
        # differs between the models.
        phrasing_style='plain',
        # The smallest shape that reads five tokens in little more time than one
        # on two CPU cores (docs/not_paid.md).
        config=common.small_model(
          hidden_size=320,
          intermediate_size=960,
          num_hidden_layers=6,
          layer_types=['sliding_attention', 'full_attention'] * 3,
          num_attention_heads=4,
          num_key_value_heads=1,
          head_dim=64,
          query_pre_attn_scalar=64,
        ),
      ),
      tiny_drafter=dict(
        **_STEPS,
        steps=2000,
        phrasing_style='ornate',
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
