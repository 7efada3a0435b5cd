"""How fast the loop is on a GPU, with the shapes of Gemma 2 and Gemma 3 pairs.

Command: python -m experiments.benchmark --config=configs/benchmark_gpu.py
Shows: in bfloat16, with random weights that are made on the device and a given
share of drafts kept: tokens a second, bytes of weights a second against the
device's own copying, compile seconds and peak memory. It takes 60 GB.
"""

import ml_collections

_VOCABULARY = 262_144


def _shape(family, width, hidden, layers, heads, kv_heads, **more):
  return ml_collections.ConfigDict(
    dict(
      model_type=family,
      vocab_size=_VOCABULARY,
      hidden_size=width,
      intermediate_size=hidden,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      num_key_value_heads=kv_heads,
      head_dim=256,
      query_pre_attn_scalar=256,
      **more,
    )
  )


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # What to time; one of experiments.benchmark.SUITES.
  c.suite = 'decoding'
  # Of the random weights.
  c.dtype = 'bfloat16'
  # Fields of a config.json each.
  c.pairs = (
    ml_collections.ConfigDict(
      dict(
        name='gemma2 2B to 9B',
        verifier=_shape('gemma2', 3584, 14336, 42, 16, 8),
        drafter=_shape('gemma2', 2304, 9216, 26, 8, 4),
      )
    ),
    ml_collections.ConfigDict(
      dict(
        name='gemma3 270M to 4B',
        verifier=_shape(
          'gemma3_text', 2560, 10240, 34, 8, 4, sliding_window=1024
        ),
        drafter=_shape('gemma3_text', 640, 2048, 18, 4, 1, sliding_window=512),
      )
    ),
  )
  # Rows of a batch.
  c.batch_sizes = (1, 16)
  # Tokens drafted per block, for the strict arms.
  c.gammas = (2, 4, 8)
  # The one that other arms have, and that more acceptances are tried at.
  c.gamma = 4
  # How often a draft is kept; the middle one for all gammas.
  c.acceptances = (0.6, 0.8, 0.9)
  # Of token_v3, with trained weights; there are none here.
  c.leniences = (0.5,)
  # Of random prompts.
  c.prompt_tokens = 64
  # Of every answer.
  c.new_tokens = 128
  # Points of a curve that is decoded in one call; for trained weights.
  c.curve_points = 11
  # Whether further pairs are compiled, with `large` and `memory`.
  c.compiles = False
  # Turns of each arm, after one that is not counted.
  c.repeats = 5
  # Of weights, prompts and sampling.
  c.seed = 0
  return c
