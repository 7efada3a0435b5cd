"""The verifier's own first layers as its drafter."""

import dataclasses
from typing import Any

from cascades.decoding.drafter import Drafter
from cascades.drafters.token_drafting import draft_tokens


@dataclasses.dataclass(frozen=True)
class SelfDrafter(Drafter):
  """The first layers of the verifier, with its parameters and its cache.

  Keys and values of the drafted tokens are those that the verifier itself would
  write, so the drafter has no state of its own.
  """

  model: Any

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts in the verifier's cache, which lacks only the last token."""
    cache = self.model.first_layers_cache(context.verifier_cache)
    draft, cache = draft_tokens(
      self.model, params, cache, context, gamma=gamma, drafts=drafts
    )
    cache = self.model.rewind(cache, context.length - 1)
    return draft, state, context.verifier_cache | cache
