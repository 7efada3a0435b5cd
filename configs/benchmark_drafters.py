"""Kinds of drafters, and several drafts per block, on a CPU.

Command: python -m experiments.benchmark --config=configs/benchmark_drafters.py
Shows: in about ten minutes on 2 cores, tokens per verifier call and per second
for every drafter, the latency modelled from unit costs, and the gain on prompts
that contain their answers. Committed results are in
experiments/results/benchmark_drafters.
"""

import ml_collections

from configs import common

_MODEL, _HEAD = 'tiny-drafter', 'tiny-recurrent'


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  entrant = common.entrant
  multi_round = dict(verification='multi_round')
  tree = dict(drafts=8, tree_size=12, **multi_round)
  beams = dict(drafts=4, verification='match', beam=True)
  return common.answering(
    verifier='tiny-verifier',
    task='word_problems',
    problems=(
      entrant('none'),
      entrant('model', _MODEL),
      entrant('model, 2', _MODEL, drafts=2, **multi_round),
      entrant('model, 4', _MODEL, drafts=4, **multi_round),
      entrant('model, 8', _MODEL, drafts=8, **multi_round),
      entrant('model, 8, tree of 12', _MODEL, **tree),
      entrant('model, 4, k-seq', _MODEL, drafts=4, verification='k_seq'),
      entrant('model, stops', _MODEL, stop_below=0.5),
      entrant('recurrent', _HEAD),
      entrant('recurrent, 4', _HEAD, drafts=4, **multi_round),
      entrant('own layers', 'self:2'),
    ),
    copies=(
      entrant('none'),
      entrant('n-gram', 'ngram'),
      entrant('model', _MODEL),
      entrant('recurrent, 4 beams', _HEAD, **beams),
      entrant('recurrent, 4 beams, tree of 10', _HEAD, tree_size=10, **beams),
    ),
    # Prompts of each part, and largest number of tokens of an answer.
    num_examples=24,
    new_tokens=96,
    # Largest number of tokens in the cache when unit costs are measured.
    context=192,
  )
