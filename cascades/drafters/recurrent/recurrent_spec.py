"""The spec of a recurrent head: 'tiny-recurrent' or a folder."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from cascades.declarations import option
from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.drafters.recurrent.recurrent_checkpoint import (
    RecurrentCheckpoint,
  )
  from cascades.models.checkpoints import Checkpoint

BUNDLED = ('tiny-recurrent',)
# A folder with this file holds a recurrent head.
HEAD_FILE = 'head.json'


def find_folder(name: str) -> pathlib.Path | None:
  """Returns the folder of a recurrent head; None for any other name."""
  if name in BUNDLED:
    return pathlib.Path(__file__).parents[2] / 'assets' / name
  folder = pathlib.Path(name)
  return folder if (folder / HEAD_FILE).is_file() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSpec(drafter_spec.CheckpointSpec['RecurrentCheckpoint']):
  """A recurrent head, which was trained for one verifier."""

  beam: bool = option(
    False,
    help='Several drafts are the best of a beam search instead of draws.',
    applies='recurrent heads',
  )

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a bundled head or a folder with a head.json."""
    return find_folder(name) is not None

  @classmethod
  def known_names(cls) -> tuple[str, ...]:
    """Returns the names of the bundled heads."""
    return BUNDLED

  def read_checkpoint(
    self, dtype: str | None, mesh: 'jax.sharding.Mesh | None'
  ) -> 'RecurrentCheckpoint':
    """Reads the head; it is small, so the mesh is ignored."""
    from cascades.drafters.recurrent import recurrent_checkpoint

    path = self.require_folder()
    return recurrent_checkpoint.load(find_folder(path) or path, dtype)

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the head to the verifier that it was trained for."""
    from cascades.decoding import BoundDrafter
    from cascades.drafters.recurrent import (
      recurrent_checkpoint,
      recurrent_drafter,
    )

    checkpoint = self.loaded_checkpoint()
    params = recurrent_checkpoint.verifier_params(checkpoint, verifier)
    drafter = recurrent_drafter.RecurrentDrafter(verifier.model, beam=self.beam)
    return BoundDrafter(drafter, (checkpoint.head, params))
