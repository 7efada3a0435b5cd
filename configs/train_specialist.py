"""Fine-tunes the bundled drafter on a task that is new to both models.

Command: python -m experiments.train --config=configs/train_specialist.py
Shows: in three minutes on two CPU cores, a model in Hugging Face layout under
the workdir, and its held-out figures on the new task and on the old ones. A
tenth of the training problems are of the old tasks; without them
(--config.mixture.word_problems=0 --config.mixture.numerals=0) the model forgets
these tasks.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.training(
    # Shares of training problems, by task.
    mixture=dict(roman=0.9, word_problems=0.065, numerals=0.035),
    eval_tasks=('word_problems', 'numerals', 'roman'),
    models=dict(
      # Continues `init`, a name or a folder, with its shape and tokenizer.
      tiny_specialist=dict(
        init='tiny-drafter',
        phrasing_style='ornate',
        steps=500,
        rows=24,
        learning_rate=0.005,
        stored='bfloat16',
      ),
    ),
  )
