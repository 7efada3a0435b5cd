"""Drafters: anything with the methods of `decoding.Drafter`.

  language_model  language models that draft token by token: another model, or
                  the verifier's own first layers
  ngram           prompt look-up: what followed the last tokens the last time
  recurrent       recurrent heads on the verifier's last hidden state
  assistant       Gemma 4's own drafters, which attend to the verifier's caches
  eagle           EAGLE-3 heads, which read several layers of the verifier
  specs           names of drafters, and the registry of kinds
  pairing         loads a drafter by name and binds it to a verifier

A new drafter is a class and a `specs.Kind` in the registry.
"""

from cascades.decoding import BoundDrafter, Draft, DraftContext, Drafter
from cascades.drafters.assistant.assistant_drafter import AssistantDrafter
from cascades.drafters.eagle.eagle_drafter import EagleDrafter
from cascades.drafters.language_model import (
  ModelDrafter,
  NoDrafter,
  SelfDrafter,
)
from cascades.drafters.ngram import NgramDrafter
from cascades.drafters.recurrent.recurrent_drafter import RecurrentDrafter

__all__ = [
  'AssistantDrafter',
  'BoundDrafter',
  'Draft',
  'DraftContext',
  'Drafter',
  'EagleDrafter',
  'ModelDrafter',
  'NgramDrafter',
  'NoDrafter',
  'RecurrentDrafter',
  'SelfDrafter',
]
