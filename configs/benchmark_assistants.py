"""A Gemma 4 assistant's steps and blocks, with random weights, on a CPU.

Command: python -m experiments.benchmark
  --config=configs/benchmark_assistants.py
Shows: in about five minutes on two cores, for the shapes of Gemma 4 E2B and its
assistant in float32, what a step takes with logits of 32 groups of tokens and
of all of them, and what a block takes by its bare passes. The verifier has 20
of its 35 layers, ten of which have no caches of their own: that are 11 GB, all
would be 19. What it gave once is in experiments/results/benchmark_assistants.
"""

import ml_collections

from configs import common

_KINDS = [*(4 * ['sliding_attention']), 'full_attention']


def get_config() -> ml_collections.ConfigDict:
  return common.benchmark(
    'assistants',
    verifier=common.shape(
      'gemma4_text',
      *(1536, 6144, 20, 8, 1, 256, 262_144),
      global_head_dim=512,
      layer_types=4 * _KINDS,
      sliding_window=512,
      hidden_size_per_layer_input=256,
      vocab_size_per_layer_input=262_144,
      num_kv_shared_layers=10,
      use_double_wide_mlp=True,
      final_logit_softcapping=30.0,
    ),
    # A published name, whose shapes it has.
    assistant='gemma-4-E2B-it-assistant',
    dtype='float32',
    # Tokens drafted per block.
    gamma=4,
    # In the caches, at the end of a loop.
    context=64,
    # Turns of each loop, at the least, and how long they go on.
    repeats=5,
    seconds=150.0,
  )
