"""The verifier's own first layers as its drafter: 'self:3'."""

import dataclasses
from typing import Any

from cascades import arguments
from cascades.decoding.drafter import BoundDrafter, Drafter
from cascades.drafters.language_model import draft_tokens
from cascades.drafters.unbound import UnboundDrafter, parse_argument
from cascades.models.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True)
class SelfSpeculative(UnboundDrafter):
  """The first layers of the verifier as its drafter.

  Attributes:
    layers: Number of layers, less than the verifier's.
  """

  layers: int
  syntax = 'self:3'
  description = "the verifier's own first layers"
  depends_on_block = False

  def __post_init__(self) -> None:
    layers = arguments.integer('layers', self.layers, 1)
    object.__setattr__(self, 'layers', layers)

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Returns the drafter of a name such as 'self:3'."""
    return cls(parse_argument(name, 'layers'))

  def bind(self, verifier: Checkpoint) -> BoundDrafter:
    """Binds the first layers to their verifier."""
    drafter = SelfDrafter(verifier.model.first_layers(self.layers))
    return BoundDrafter(drafter, verifier.params)


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
