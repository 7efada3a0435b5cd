"""Removed names, and the names that replace them.

A removed name is refused with a sentence that says what to write instead.
docs/migrating.md lists the names of modules and functions too.
"""

from collections.abc import Collection, Mapping
from typing import Any

from cascades.config import DecodingConfig
from cascades.declarations import options_of

# Attributes of the package.
RENAMED_ATTRIBUTES = {'Answer': 'SampleOutput', 'Audit': 'AuditResult'}
# Options, flags, config fields and keyword arguments.
RENAMED_OPTIONS = {
  'others_say': 'fill_unselected_logits',
  'bootstrap_seed': 'seed',
}
# Fields of configs of trainings, and of one of their models.
RENAMED_TRAINING_FIELDS = {'author': 'phrasing_style', 'turn': 'kl_fraction'}
# Keyword arguments of `Sampler.sample`; the flag and config field stay `chat`.
_RENAMED_REQUESTS = {'chat': 'apply_chat_template'}


def replacement(name: str) -> str | None:
  """Returns a sentence for a renamed option; None for every other name."""
  if name not in RENAMED_OPTIONS:
    return None
  return f'{name}: was renamed; write {RENAMED_OPTIONS[name]}.'


def training_replacement(name: str) -> str | None:
  """Returns a sentence for a renamed field of trainings, or None."""
  new = RENAMED_TRAINING_FIELDS.get(name)
  return new and f'{name}: was renamed in configs of trainings; write {new}.'


def refuse_training_fields(config: Mapping[str, Any]) -> None:
  """Refuses fields that trainings, or their models, no longer have."""
  for fields in (config, *(config.get('models') or {}).values()):
    for name in fields:
      if sentence := training_replacement(name):
        raise ValueError(sentence)


def refuse_options(names: Collection[str], function: str = 'Sampler') -> None:
  """Refuses keyword arguments that `Sampler`, or a method of it, lacks."""
  from cascades import drafters

  for name in names:
    new = RENAMED_OPTIONS.get(name, name)
    if new in options_of(DecodingConfig):
      raise TypeError(
        f'{name}: is an option of DecodingConfig; write'
        f' config=DecodingConfig({new}=...).'
      )
    if new in drafters.declared_options():
      raise TypeError(
        f'{name}: is an option of the drafter; write'
        f' drafter=drafters.parse_spec(NAME, {new}=...).'
      )
    if name in _RENAMED_REQUESTS and function != 'Sampler':
      raise TypeError(f'{name}: was renamed; write {_RENAMED_REQUESTS[name]}.')
    raise TypeError(f'{name}: is not an argument of {function}; leave it out.')
