"""Gemma 3 270M on a CPU: our loop, transformers', gemma's own and llama.cpp's.

Command: python -m experiments.benchmark --config=configs/benchmark_270m.py
Shows: what a pass takes by the tokens that it reads, in float32 and bfloat16;
tokens a second of every arm on captions of Multi30k, German to English, greedy;
n-grams where an answer stands in the prompt; and how the targets are met. It
wants the captions, `--config.path=multi30k/test_2016_flickr`, and for other
people's arms a Python that has them: `--config.transformers=PYTHON` (torch and
transformers), `--config.llama=PYTHON` (xllamacpp). What it gave once is in
experiments/results/benchmark_270m.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.benchmark(
    'pretrained',
    verifier='gemma3-270m',
    # A name or a folder.
    drafter='gemma3-270m-multi30k-de-en',
    task='multi30k_de_en',
    # The task's file.
    path='',
    # Worked examples before each prompt.
    shots=4,
    # What ends an answer, a single token.
    stop='\n\n',
    # Its most tokens.
    new_tokens=32,
    dtypes=('float32', 'bfloat16'),
    # Rows of a batch; as many prompts as the largest has rows.
    batch_sizes=(1, 8),
    # Tokens that are read at once.
    widths=(1, 2, 5, 9),
    # Tokens in the cache at the end of bare passes, and how long these are
    # timed.
    context=128,
    seconds=20.0,
    # Tokens drafted per block.
    gamma=4,
    # Turns of every arm.
    repeats=5,
    # Pythons that have other people's loops; '' for none.
    transformers='',
    llama='',
  )
