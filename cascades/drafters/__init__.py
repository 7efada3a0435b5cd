"""Drafters, and how a string becomes a drafter of a verifier.

  drafter_kinds     the registry of kinds, `parse_spec` and `declared_options`
  drafter_spec      base classes of specs, which hold the options of a drafter
  binding           `bind_drafter`: a spec, a name or a model, for a verifier
  token_checks      whether models and tokenizers have the same tokens
  language_model    language models that draft token by token
  self_speculative  the verifier's own first layers
  ngram             prompt look-up: repeats continuations of the text
  recurrent         recurrent heads on the verifier's last hidden state
  eagle             EAGLE-3 heads, which read several layers of the verifier
  assistant         Gemma 4's own drafters, which attend to its caches
  no_drafter        decoding with the verifier alone

A new kind of drafter is a class with the methods of `decoding.Drafter`, a spec,
and a `DrafterKind` in the registry. The names below are imported when they are
first used: specs and their options cost no JAX.
"""

import importlib
from typing import TYPE_CHECKING

from cascades.drafters.drafter_kinds import (
  DRAFTERS,
  DrafterKind,
  declared_options,
  kind_of,
  parse_spec,
)
from cascades.drafters.drafter_spec import Spec

if TYPE_CHECKING:
  from cascades.decoding import BoundDrafter, Draft, DraftContext, Drafter
  from cascades.drafters.assistant.assistant_drafter import AssistantDrafter
  from cascades.drafters.binding import bind_drafter
  from cascades.drafters.eagle.eagle_drafter import EagleDrafter
  from cascades.drafters.language_model import ModelDrafter
  from cascades.drafters.ngram import NgramDrafter
  from cascades.drafters.no_drafter import NoDrafter
  from cascades.drafters.recurrent.recurrent_drafter import RecurrentDrafter
  from cascades.drafters.self_speculative import SelfDrafter

_HOME = {
  'AssistantDrafter': 'drafters.assistant.assistant_drafter',
  'BoundDrafter': 'decoding',
  'Draft': 'decoding',
  'DraftContext': 'decoding',
  'Drafter': 'decoding',
  'EagleDrafter': 'drafters.eagle.eagle_drafter',
  'ModelDrafter': 'drafters.language_model',
  'NgramDrafter': 'drafters.ngram',
  'NoDrafter': 'drafters.no_drafter',
  'RecurrentDrafter': 'drafters.recurrent.recurrent_drafter',
  'SelfDrafter': 'drafters.self_speculative',
  'bind_drafter': 'drafters.binding',
}

__all__ = [
  'DRAFTERS',
  'AssistantDrafter',
  'BoundDrafter',
  'Draft',
  'DraftContext',
  'Drafter',
  'DrafterKind',
  'EagleDrafter',
  'ModelDrafter',
  'NgramDrafter',
  'NoDrafter',
  'RecurrentDrafter',
  'SelfDrafter',
  'Spec',
  'bind_drafter',
  'declared_options',
  'kind_of',
  'parse_spec',
]


def __getattr__(name: str):
  if name not in _HOME:
    raise AttributeError(f'module {__name__} has no attribute {name!r}')
  value = getattr(importlib.import_module(f'cascades.{_HOME[name]}'), name)
  globals()[name] = value
  return value
