"""cascades: speculative cascades and speculative decoding with Gemma.

The modules and packages of the library, in layers: each imports only those
above it in this list.

  arguments            options, their values and the names of entries
  files                files of strangers, and files written whole
  compilation          the cache of compiled programs
  verification_config  kinds of verification, and sources of tokens
  methods              one position: q and p to the distribution to sample
  verification         one block: accepts drafts, samples the token after them
  config               the options of decoding, checked
  presets              the options of engines' lossy switches
  models               language models for one sequence, and their files
  decoding             one sequence: its state, one block, the compiled loop
  drafters             the kinds of drafters, their names and their options
  decisions            settings that a sweep chose, and hashes of their models
  sampler              strings in, strings and counts out
  proof                audits: a method emits the law that it declares
  contrib              parts beside the library: CPUs, engine audits, lm-eval

The names below are imported when they are first used, so that `import cascades`
alone does not import JAX.
"""

import importlib
import re

# The only source of the package's version; pyproject.toml reads it here.
__version__ = '0.2.0'

_NAMES = {
  'config': 'DecodingConfig',
  'drafters': 'Assistant DraftModel EagleHead NgramDrafter RecurrentHead'
  ' SelfSpeculative',
  'methods': 'Distributions METHODS Method from_rule from_target'
  ' get_acceptance_residual_fns register',
  'models.checkpoints': 'load_model',
  'models.chat': 'Conversation',
  'proof.audit': 'AuditResult audit',
  'sampler.predicting': 'Prediction predict',
  'sampler.scoring': 'explain',
  'sampler.sampler': 'SampleOutput Sampler',
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
ROOMS = re.findall(r'^  (\w+) ', __doc__ or '', re.M)

__all__ = sorted([*_HOME, *ROOMS])


def __getattr__(name: str):
  if name in _HOME:
    value = getattr(importlib.import_module(f'cascades.{_HOME[name]}'), name)
    globals()[name] = value
    return value
  if name in ROOMS:
    return importlib.import_module(f'cascades.{name}')
  raise AttributeError(f'module cascades has no attribute {name!r}')


def __dir__():
  return __all__
