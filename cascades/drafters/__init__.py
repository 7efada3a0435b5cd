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
  chain      A model whose tokens a smaller drafter drafts; `chains` has its
             name.
  pairing    What a name stands for, and whether it goes with a verifier.

To add one, write a class here; `pairing` gives it a name.
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
