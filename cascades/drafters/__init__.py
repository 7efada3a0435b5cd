"""What proposes: anything with the methods of `decoding.Drafter`.

  model      A language model, token by token: another, or the verifier's own
             first layers. It may stop where it is not sure.
  ngram      The text itself: what followed the last time.
  recurrent  A small head on the verifier's last hidden state; `heads` keeps and
             loads it.
  assistant  Gemma 4's own: layers that look into the verifier's caches;
             `assistants` loads them.
  eagle      EAGLE-3 heads, which look between the verifier's layers;
             `speculators` loads them.
  specs      What names stand for, and the registry of kinds.
  pairing    Names to drafters, and whether they go with a verifier.

To add one, write a class and register a `specs.Kind`.
"""

from cascades.decoding import Draft, Drafter, Equipped, Seen
from cascades.drafters.assistant import AssistantDrafter
from cascades.drafters.eagle import EagleDrafter
from cascades.drafters.model import ModelDrafter, NoDrafter, SelfDrafter
from cascades.drafters.ngram import NgramDrafter
from cascades.drafters.recurrent import RecurrentDrafter

__all__ = [
  'AssistantDrafter',
  'Draft',
  'Drafter',
  'EagleDrafter',
  'Equipped',
  'ModelDrafter',
  'NgramDrafter',
  'NoDrafter',
  'RecurrentDrafter',
  'Seen',
  'SelfDrafter',
]
