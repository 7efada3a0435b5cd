"""The spec of the verifier's own first layers as a drafter: 'self:3'."""

import dataclasses
from typing import TYPE_CHECKING

from cascades import arguments
from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  from cascades.decoding import BoundDrafter
  from cascades.models.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfSpeculativeSpec(drafter_spec.Spec):
  """The first layers of the verifier as its drafter."""

  layers: int

  def __post_init__(self) -> None:
    super().__post_init__()
    layers = arguments.integer('layers', self.layers, 1)
    object.__setattr__(self, 'layers', layers)

  @classmethod
  def parse(cls, name: str) -> 'SelfSpeculativeSpec':
    """Returns the spec of a name such as 'self:3'."""
    return cls(layers=drafter_spec.parse_argument(name, 'layers'))

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the first layers to their verifier."""
    from cascades.decoding import BoundDrafter
    from cascades.drafters.self_speculative import SelfDrafter

    model = verifier.model.first_layers(self.layers)
    return BoundDrafter(SelfDrafter(model), verifier.params)
