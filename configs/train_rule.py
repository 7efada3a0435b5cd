"""Trains a deferral rule for a pair, on texts that a sweep of it wrote.

Command: python -m experiments.train --config=configs/train_rule.py
Shows: the objective of Lemma 4 on examples that are held out, of the rule that
was learnt and of the paper's, at several prices of a rejection; and a folder
that `--method=learned:FOLDER` takes. It wants a sweep of the pair that was
decoded on training examples: for the bundled pair `python -m experiments.sweep
--config=configs/quickstart.py --config.split=train
--config.tasks="('word_problems',)" --config.num_examples=150 --config.clock=0
--workdir=runs/quickstart_train`, which stands in `workdirs` here.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return ml_collections.ConfigDict(
    dict(
      # Of the rule, and so of its folder.
      name='tiny-rule',
      # Of sweeps of one pair, alike in temperature and gate; several with
      # commas between them.
      workdirs='runs/quickstart_train',
      # What of a text stands for how right it is: one of the task's scores, or
      # '' for its quality.
      score='',
      # An example's texts weigh as this power of it.
      sharpness=1.0,
      # Most texts that are read, and how many at a time.
      texts=3000,
      batch_size=16,
      # Share of the examples whose texts are held out.
      held_out=0.25,
      # Leniences that the objective is averaged over. A token is likelier to
      # one model than to the other by TV at most, so that from 1 on no deferral
      # pays.
      leniences=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
      # While it is fitted, it defers by sigmoid((h - lam TV) / softness).
      softness=0.02,
      # What a weight's distance from OPT's costs, squared, the features being
      # of variance 1.
      ridge=1e-6,
    )
  )
