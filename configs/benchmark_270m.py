"""Gemma 3 270M on a CPU: this loop, transformers, gemma's and llama.cpp.

Command: python -m experiments.benchmark --config=configs/benchmark_270m.py
Shows: in about 15 minutes of timed runs on two CPU cores, tokens per second of
every entrant on captions of Multi30k, German to English, greedy, in float32,
bfloat16 and int8; and n-grams on prompts that contain their answers.
`--config.path=multi30k/test.jsonl` gives the captions;
`--config.transformers=PYTHON` (torch and transformers) and
`--config.llama=PYTHON` (xllamacpp) give Python interpreters with the loops of
other libraries. Committed results are in experiments/results/benchmark_270m.
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
    # Prompts of each part, and largest number of tokens of an answer.
    num_examples=8,
    new_tokens=32,
    temperature=0.0,
    dtypes=('float32', 'bfloat16', 'int8'),
    batch_sizes=(1, 8),
    gemma=True,
    assistant=_DRAFTER,
  )
