"""Three kinds of drafters, and several drafts per block, on a CPU.

Command: python -m experiments.benchmark --config=configs/benchmark_drafters.py
Shows: in about four minutes on 2 cores, tokens per verifier call and per second
for every drafter, and the gain on prompts that contain their answers. Committed
results are in experiments/results/benchmark_drafters.
"""

import ml_collections

from configs import common

_MODEL = 'tiny-drafter'


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  entrant = common.entrant
  return common.answering(
    verifier='tiny-verifier',
    task='word_problems',
    problems=(
      entrant('none'),
      entrant('model', _MODEL),
      entrant('model, 4', _MODEL, drafts=4, verification='multi_round'),
      entrant('recurrent', 'tiny-recurrent'),
    ),
    copies=(
      entrant('none'),
      entrant('n-gram', 'ngram'),
    ),
    # Prompts of each part, and largest number of tokens of an answer.
    num_examples=24,
    new_tokens=96,
  )
