"""Engines' lossy switches beside cascades, each at several values.

Command: python -m experiments.sweep --config=configs/engines.py
Shows: each switch of `cascades.presets` and each rule, at one gamma (strict
decoding also at 2): which switches are slower than a rule at no better quality.
It answers word problems with the bundled pair, in seven minutes on two CPU
cores; `configs/engines.py:three` answers three tasks with a specialist, and
`configs/engines.py:270m` captions with Gemma 3 270M, in a quarter of an hour,
as configs/gemma3_270m.py. Decoding is greedy; --config.temperature=0.5 leaves
out the two switches that are always greedy.
"""

import ml_collections

from configs import common, gemma3_270m, specialist

# Leniences by switch: the engine's or the documented value, and others.
_SWITCHES = dict(
  vllm_fly=(-0.6, -0.3, 0.0),
  transformers_ensemble=(0.25, 0.5, 0.75),
  sglang_threshold=(0.0, 0.3, 0.6, 0.9),
  trtllm_relaxed=(0.3, 0.6, 0.9),
  medusa_typical=(0.91, 0.97, 0.99),
)
_GREEDY = 'trtllm_relaxed', 'medusa_typical'
_RULES = dict(
  token_v2=(0.1, 0.2, 0.3, 0.5, 0.7),
  token_v3=(0.6, 0.8, 0.9, 0.95),
  opt=(0.0, 0.05, 0.1, 0.2),
)


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a pair: '', 'three' or '270m'."""
  if argument not in ('', 'three', '270m'):
    raise ValueError(f'argument: must be three or 270m, got {argument!r}.')
  changes: dict = dict(tasks=('word_problems',), num_examples=500)
  config = common.sweep(*'verification gate bonus draft mesh split'.split())
  if argument == 'three':
    config, changes = specialist.get_config(), dict(num_examples=100)
  if argument == '270m':
    config, changes = gemma3_270m.get_config(), dict(num_examples=128, gamma=3)
    config.clock = 0
    del config.decision
  with config.unlocked():
    config.update({'temperature': 0.0, 'gamma': 4} | changes)
  return config


def sweep(add, config):
  """Adds the switches that decode at the temperature, and the rules."""
  add(method='verifier_only', lenience=())
  add(method='speed', lenience=(0.0,), gamma=(2, config.gamma))
  for method, lenience in _RULES.items():
    add(method=method, lenience=lenience)
  for method, lenience in _SWITCHES.items():
    if config.temperature == 0 and method == 'sglang_threshold':
      # Strict at temperature 0.
      add(method=method, lenience=lenience[:1])
    elif config.temperature == 0 or method not in _GREEDY:
      add(method=method, lenience=lenience)
