"""Gemma 3 270M on a CPU: our loop, transformers', gemma's own and llama.cpp's.

Command: python -m experiments.benchmark --config=configs/benchmark_270m.py
Shows: tokens a second of every entrant on captions of Multi30k, German to
English, greedy, in float32 and bfloat16; n-grams where an answer stands in the
prompt; and which thresholds are met. It wants the captions,
`--config.path=multi30k/test_2016_flickr`, and for other people's loops a Python
that has them: `--config.transformers=PYTHON` (torch and transformers),
`--config.llama=PYTHON` (xllamacpp). What it gave once is in
experiments/results/benchmark_270m.
"""

import ml_collections

from configs import common

_DRAFTER = 'gemma3-270m-multi30k-de-en'


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  entrants = (
    common.entrant('alone'),
    common.entrant('strict', _DRAFTER),
    common.entrant('n-gram', 'ngram'),
  )
  return common.answering(
    verifier='gemma3-270m',
    task='multi30k_de_en',
    shots=4,
    stop='\n\n',
    problems=entrants,
    copies=entrants,
    # Prompts, and most tokens of an answer.
    num_examples=8,
    new_tokens=32,
    temperature=0.0,
    dtypes=('float32', 'bfloat16'),
    batch_sizes=(1, 8),
    # Tokens in the cache at the end of bare calls.
    context=128,
    gemma=True,
    assistant=_DRAFTER,
  )
