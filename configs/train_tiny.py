"""Trains the bundled pair from scratch on the bundled tasks.

Command: python -m experiments.train --config=configs/train_tiny.py
Shows: one tokenizer and two models in Hugging Face layout under the workdir,
and their held-out figures.
"""

import ml_collections

from configs import common

# Of the training of either model.
_STEPS = dict(steps=3000, rows=24, learning_rate=0.02)


def get_config() -> ml_collections.ConfigDict:
  return common.training(
    # Shares of training problems, by task.
    mixture=dict(word_problems=0.65, numerals=0.35),
    # Pieces of the tokenizer; 256 of them are single bytes.
    vocab_size=768,
    # Problems the tokenizer is trained on, per task.
    tokenizer_examples=8000,
    eval_tasks=('word_problems', 'numerals'),
    models=dict(
      tiny_verifier=dict(
        **_STEPS,
        config=common.small_model(
          hidden_size=192,
          intermediate_size=512,
          num_hidden_layers=6,
          layer_types=['sliding_attention', 'full_attention'] * 3,
          num_attention_heads=3,
          num_key_value_heads=1,
          head_dim=64,
          query_pre_attn_scalar=64,
        ),
      ),
      tiny_drafter=dict(
        **_STEPS,
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
