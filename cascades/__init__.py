"""cascades: speculative cascades and speculative decoding with Gemma.

The library has rooms, each with one rule; a room imports only what stands
above it in this list.

  arguments            checks of argument values
  declarations         options, each declared once
  untrusted            files that others made, and text that they hold
  extras               which command installs an optional dependency
  compilation          what is compiled is kept for the next process
  plain                values as JSON can hold them
  atomic               files that are written whole or not at all
  registries           what an option can name, plug-ins included
  verification_config  how blocks are verified, and where tokens come from
  methods              both models' distributions to the one to sample
  schedules            one answer: how lenient a method is along it
  config               the options of decoding, checked
  verification         one block: which drafts stay, and the token after them
  models               language models for one sequence, and their files
  decoding             one sequence: its state, a block of it, the loop
  drafters             all that proposes, and what their names stand for
  fingerprints         hashes of models
  decisions            settings that were chosen, with their evidence
  migration            removed names, and the names that replace them
  sampler              strings in, strings and counts out
  proof                whether a method does what it declares
  contrib              plug-ins of the registries; the core never imports it

The names below are imported when they are first used, so that importing
`cascades` alone costs no JAX.
"""

import importlib

# The only source of the package's version; pyproject.toml reads it here.
__version__ = '0.2.0'

_HOME = {
  'Conversation': 'models.conversations',
  'DecodingConfig': 'config',
  'Sampler': 'sampler.sampler',
  'SampleOutput': 'sampler.outputs',
  'agreement': 'sampler.agreement',
  'load_model': 'models.checkpoints',
  'METHODS': 'methods',
  'Method': 'methods',
  'Distributions': 'methods',
  'register': 'methods',
  'from_target': 'methods',
  'from_rule': 'methods',
  'get_acceptance_residual_fns': 'methods',
  'audit': 'proof.audit',
  'AuditResult': 'proof.audit',
}
# In the order of the list; `tests/imports_test.py` holds them to it.
ROOMS = (
  'arguments declarations untrusted extras compilation plain atomic registries'
  ' verification_config methods schedules config verification models decoding'
  ' drafters fingerprints decisions migration sampler proof contrib'
).split()

__all__ = sorted([*_HOME, *ROOMS])


def __getattr__(name: str):
  if name in _HOME:
    value = getattr(importlib.import_module(f'cascades.{_HOME[name]}'), name)
    globals()[name] = value
    return value
  # What moved away says where to: see `tasks.py`.
  if name in ROOMS or name == 'tasks':
    return importlib.import_module(f'cascades.{name}')
  from cascades import migration

  if new := migration.RENAMED_ATTRIBUTES.get(name):
    raise AttributeError(f'cascades.{name} was renamed; write cascades.{new}.')
  raise AttributeError(f'module cascades has no attribute {name!r}')


def __dir__():
  return __all__
