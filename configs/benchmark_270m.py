"""Gemma 3 270M on a CPU: this loop, transformers, gemma's and llama.cpp.

Command: python -m experiments.benchmark --config=configs/benchmark_270m.py
Shows: in 40 minutes on two CPU cores, tokens per second of every entrant on
captions of Multi30k (`--config.path=multi30k/test.jsonl`), greedy, by dtype;
and of n-grams on prompts that contain their answers. For other loops,
`--config.transformers=PYTHON` and `--config.llama=PYTHON` are interpreters with
transformers and xllamacpp, and `--config.llama_drafter=FILE` is a drafter of
the whole vocabulary as GGUF. Results: experiments/results/benchmark_board.
"""

import ml_collections

from configs import common

_DRAFTER = 'gemma3-270m-multi30k-de-en'
_ONE_LAYER = 'gemma3-270m-multi30k-one-layer'


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
    problems=(
      *entrants,
      common.entrant('TokenV3', _DRAFTER, method='token_v3', lenience=0.8),
      common.entrant('strict, one layer', _ONE_LAYER, gamma=3),
    ),
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
