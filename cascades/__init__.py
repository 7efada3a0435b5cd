"""cascades: speculative cascades and speculative decoding with Gemma.

The names below are imported when they are first used, so that importing
`cascades` for its reports alone costs no JAX.
"""

import importlib

_HOME = {
  'Sampler': 'sampler',
  'Answer': 'sampler',
  'load_model': 'checkpoints',
  'METHODS': 'methods',
  'Method': 'methods',
  'Distributions': 'methods',
  'register': 'methods',
  'from_target': 'methods',
  'from_rule': 'methods',
  'agreement': 'checking',
  'audit': 'auditing',
  'Audit': 'auditing',
  'get_acceptance_residual_fns': 'methods',
}
_MODULES = (
  'auditing batching chain checking checkpoints costs decoding distillation'
  ' drafters heads huggingface memory methods metrics models pairing records'
  ' report sampler sampling scoring sequence sharding stats tasks testing'
  ' tokenizers training turns verification'
).split()

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str):
  if name in _HOME:
    return getattr(importlib.import_module(f'cascades.{_HOME[name]}'), name)
  if name in _MODULES:
    return importlib.import_module(f'cascades.{name}')
  raise AttributeError(f'module cascades has no attribute {name!r}')


def __dir__():
  return __all__
