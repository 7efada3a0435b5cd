"""How fast the loop is on a CPU: by gemma's own sampler, and by its floor.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: in about an hour on 2 cores, every arm's compile, prefill and decode
time, and how the targets are met. What it gave once is in
experiments/results/benchmark.
"""

import ml_collections


def _shape(
  width, hidden, layers, heads, kv_heads, head_dim, vocab_size, family='gemma2'
):
  return ml_collections.ConfigDict(
    dict(
      model_type=family,
      vocab_size=vocab_size,
      hidden_size=width,
      intermediate_size=hidden,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      num_key_value_heads=kv_heads,
      head_dim=head_dim,
      query_pre_attn_scalar=head_dim,
    )
  )


def _pair(verifier, drafter, name='', **own):
  return ml_collections.ConfigDict(
    dict(name=name, verifier=verifier, drafter=drafter, **own)
  )


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # What to time; one of experiments.benchmark.SUITES.
  c.suite = 'decoding'
  # Of the random weights; the bundled ones are float32.
  c.dtype = 'float32'
  # Bundled names, or fields of a config.json for random weights.
  c.pairs = (
    _pair('tiny-verifier', 'tiny-drafter', 'bundled'),
    _pair(
      _shape(512, 2048, 7, 8, 4, 64, 8192),
      _shape(48, 128, 2, 2, 1, 32, 8192),
      '32M',
    ),
    _pair(
      _shape(768, 3072, 12, 12, 4, 64, 16384),
      _shape(128, 512, 6, 4, 2, 64, 16384),
      '120M',
      # Its batches of 16 take as long as all the rest.
      new_tokens=32,
      repeats=3,
    ),
  )
  # Rows of a batch.
  c.batch_sizes = (1, 4, 16)
  # Tokens drafted per block, for the strict arms.
  c.gammas = (1, 2, 3, 4, 5, 6, 7, 8)
  # The one that other arms have, and that more acceptances are tried at.
  c.gamma = 4
  # How often a draft of random weights is kept; the middle one for all gammas.
  c.acceptances = (0.6, 0.8, 0.9)
  # Of token_v3, with trained weights.
  c.leniences = (0.5, 0.9, 0.99)
  # Of random prompts; the bundled pair solves word problems.
  c.prompt_tokens = 32
  # Of every answer.
  c.new_tokens = 64
  # Points of a curve that is decoded in one call.
  c.curve_points = 11
  # Whether the next two are compiled, and a command is timed twice.
  c.compiles = True
  # Gemma 2 2B, which is only compiled.
  c.large = _pair(
    _shape(2304, 9216, 26, 8, 4, 256, 256_000),
    _shape(2304, 9216, 26, 8, 4, 256, 256_000),
  )
  # Small models with Gemma 3's vocabulary, whose temporaries are counted; at
  # gamma, and at twice as much.
  c.memory = _pair(
    _shape(64, 128, 2, 2, 1, 32, 262_144, 'gemma3_text'),
    _shape(32, 64, 1, 1, 1, 32, 262_144, 'gemma3_text'),
  )
  c.memory.batch = 8
  c.memory.gamma = 4
  # Turns of each arm, after one that is not counted.
  c.repeats = 5
  # Of weights, prompts and sampling.
  c.seed = 0
  return c
