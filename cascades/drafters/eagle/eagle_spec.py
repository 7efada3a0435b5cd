"""The spec of an EAGLE-3 head: a folder of the `speculators` library."""

import dataclasses
from typing import TYPE_CHECKING

from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.drafters.eagle.eagle_checkpoint import EagleCheckpoint
  from cascades.models.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleSpec(drafter_spec.CheckpointSpec['EagleCheckpoint']):
  """An EAGLE-3 head, which was trained for one verifier."""

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a folder that `speculators` wrote."""
    from cascades.drafters.eagle import eagle_checkpoint

    return eagle_checkpoint.is_speculator(name)

  def read_checkpoint(
    self, dtype: str | None, mesh: 'jax.sharding.Mesh | None'
  ) -> 'EagleCheckpoint':
    """Reads the head; it is small, so the mesh is ignored."""
    from cascades.drafters.eagle import eagle_checkpoint

    return eagle_checkpoint.load(self.require_folder(), dtype)

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the head to a verifier of the size that it was trained for."""
    from cascades.decoding import BoundDrafter
    from cascades.drafters.eagle import eagle_checkpoint

    checkpoint = self.loaded_checkpoint()
    drafter = eagle_checkpoint.make_drafter(checkpoint, verifier)
    return BoundDrafter(drafter, (checkpoint.params, verifier.params))
