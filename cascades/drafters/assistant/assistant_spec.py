"""The spec of an assistant of Gemma 4: a Hugging Face folder."""

import dataclasses
from typing import TYPE_CHECKING

from cascades.declarations import option
from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.drafters.assistant.assistant_checkpoint import (
    AssistantCheckpoint,
  )
  from cascades.models.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssistantSpec(drafter_spec.CheckpointSpec['AssistantCheckpoint']):
  """An assistant of Gemma 4, made for a verifier of one size."""

  fill_unselected_logits: bool = option(
    True,
    help='Tokens outside of the selected groups get the smallest logit minus 1,'
    ' as in transformers; false gives them probability 0.',
    applies='assistants of Gemma 4',
  )

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for the folder or the published name of an assistant."""
    from cascades.drafters.assistant import assistant_checkpoint

    return assistant_checkpoint.is_assistant(name)

  def read_checkpoint(
    self, dtype: str | None, mesh: 'jax.sharding.Mesh | None'
  ) -> 'AssistantCheckpoint':
    """Reads the assistant; it is small, so the mesh is ignored."""
    from cascades.drafters.assistant import assistant_checkpoint

    return assistant_checkpoint.load(self.require_folder(), dtype)

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the assistant to a Gemma 4 of the size that it was made for."""
    from cascades.decoding import BoundDrafter
    from cascades.drafters.assistant import assistant_checkpoint

    checkpoint = self.loaded_checkpoint()
    drafter = assistant_checkpoint.make_drafter(
      checkpoint,
      verifier,
      fill_unselected_logits=self.fill_unselected_logits,
    )
    return BoundDrafter(drafter, (checkpoint.params, verifier.params))
