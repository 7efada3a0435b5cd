"""How large a verifier must be for a block to cost little more than a token.

Command: python -m experiments.benchmark --config=configs/benchmark_sizes.py
Shows: in about two minutes on two cores, for models of the bundled verifier's
kind, what reading 2 to 9 tokens at once takes by the time of reading one.
Where the weights fit into a CPU's cache, it takes a multiple; where they have
to be fetched from memory, they are fetched once for all tokens of a block.
"""

import ml_collections

from configs import common, train_tiny


def _verifier(width: int, hidden: int, layers: int):
  kinds = ['sliding_attention', 'full_attention']
  return common.small_model(
    hidden_size=width,
    intermediate_size=hidden,
    num_hidden_layers=layers,
    layer_types=[kinds[i % 2] for i in range(layers)],
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=64,
    query_pre_attn_scalar=64,
  )


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # What to time; a key of experiments.benchmarks.SUITES.
  c.suite = 'sizes'
  # By name, width x layers; of each, its config.json.
  c.verifiers = {
    '192 x 6': _verifier(192, 512, 6),
    '256 x 6': _verifier(256, 768, 6),
    '320 x 6': _verifier(320, 960, 6),
    '384 x 4': _verifier(384, 1152, 4),
    '384 x 6': _verifier(384, 1152, 6),
    '512 x 6': _verifier(512, 1536, 6),
  }
  # Who drafts for all of them: the bundled one.
  c.drafter = train_tiny.get_config().models.tiny_drafter.config
  # Tokens drafted per block; the verifier reads one more.
  c.gammas = (1, 2, 4, 8)
  # Tokens in the cache at the end of a loop.
  c.context = 128
  # How long each verifier is timed, its arms taking turns.
  c.seconds = 8.0
  # Of the random weights.
  c.seed = 0
  return c
