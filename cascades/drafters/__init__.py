"""What can draft: anything with the methods of `Drafter`.

  model      A language model, token by token: another, or the verifier's own
             first layers. It may stop where it is not sure.
  ngram      The text itself: what followed the last time.
  recurrent  A small head on the verifier's last hidden state.

A drafter whose tokens a smaller drafter drafts is in `cascades.chain`, for it
runs the decoding loop itself.
"""

from cascades.drafters.drafter import (
  Draft,
  Drafter,
  Equipped,
  Seen,
  permitted,
  whole,
)
from cascades.drafters.model import ROWS, ModelDrafter, NoDrafter, SelfDrafter
from cascades.drafters.ngram import NgramDrafter
from cascades.drafters.reading import (
  Branches,
  Tree,
  read,
  read_hidden,
  side_by_side,
  tree,
)
from cascades.drafters.recurrent import RecurrentDrafter

__all__ = [
  'ROWS',
  'Branches',
  'Draft',
  'Drafter',
  'Equipped',
  'ModelDrafter',
  'NgramDrafter',
  'NoDrafter',
  'RecurrentDrafter',
  'Seen',
  'SelfDrafter',
  'Tree',
  'permitted',
  'read',
  'read_hidden',
  'side_by_side',
  'tree',
  'whole',
]
