"""Drafters beyond a second model, and several drafts per block, on a CPU.

Command: python -m experiments.benchmark --config=configs/benchmark_drafters.py
Shows: in about ten minutes on 2 cores, tokens per call of the verifier and per
second for every drafter; n-grams on prompts that repeat themselves; and what
the bookkeeping of several drafts costs. What it gave once is in
experiments/results/benchmark_drafters.
"""

import ml_collections

from configs import benchmark, common


def _arm(name, drafter=None, **options):
  return ml_collections.ConfigDict(dict(name=name, drafter=drafter, **options))


def get_config() -> ml_collections.ConfigDict:
  several = dict(verification='multi_round')
  beams = dict(verification='match', beam=True)
  return common.benchmark(
    'drafters',
    # Of the pair with random weights.
    dtype='float32',
    verifier='tiny-verifier',
    # Strict arms at temperature 1; the first is the verifier alone.
    problems=(
      _arm('none'),
      _arm('model', 'tiny-drafter'),
      _arm('model, 2', 'tiny-drafter', drafts=2, **several),
      _arm('model, 4', 'tiny-drafter', drafts=4, **several),
      _arm('model, 8', 'tiny-drafter', drafts=8, **several),
      _arm(
        'model, 8, tree of 12',
        'tiny-drafter',
        tree_size=12,
        drafts=8,
        **several,
      ),
      _arm('model, 4, k-seq', 'tiny-drafter', drafts=4, verification='k_seq'),
      _arm('model, stops', 'tiny-drafter', stop_below=0.5),
      _arm('recurrent', 'tiny-recurrent'),
      _arm('recurrent, 4', 'tiny-recurrent', drafts=4, **several),
      _arm('own layers', 'self:2'),
    ),
    # Greedy arms on prompts that repeat themselves.
    copies=(
      _arm('none'),
      _arm('n-gram', 'ngram'),
      _arm('model', 'tiny-drafter'),
      _arm('recurrent, 4 beams', 'tiny-recurrent', drafts=4, **beams),
      _arm(
        'recurrent, 4 beams, tree of 10',
        'tiny-recurrent',
        drafts=4,
        tree_size=10,
        **beams,
      ),
    ),
    # Prompts of each part, and most tokens of an answer.
    num_examples=24,
    max_new_tokens=96,
    # Tokens drafted per block.
    gamma=4,
    # The pair whose bookkeeping is timed, at so many drafts.
    tree=benchmark.get_config().pairs[1],
    tree_drafts=(1, 4),
    # Its prompts, of which the most are made; one is decoded at a time.
    batch_sizes=(8,),
    # Tokens that it writes before n-grams go on, and their drafted tokens.
    loop_tokens=128,
    loop_gammas=(2, 4, 8),
    # Of its prompts and answers.
    prompt_tokens=32,
    new_tokens=64,
  )
