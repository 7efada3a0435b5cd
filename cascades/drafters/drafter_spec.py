"""Specs of drafters: a drafter that is not bound to a verifier yet.

A spec is a frozen dataclass, one class for each kind of drafter. Its fields say
which drafter it is and hold the options that only this kind has. A string such
as 'self:3' is parsed into a spec; the way to a drafter is then

  spec = drafters.parse_spec('tiny-drafter', stop_below=0.2)
  spec = spec.load(dtype='float32')   reads parameters, without a verifier
  bound = spec.bind(verifier)         a `BoundDrafter`

This module imports no JAX, so that flags and help find the options at once.
"""

import dataclasses
from typing import TYPE_CHECKING, Self

from cascades import arguments
from cascades.declarations import Declared
from cascades.registries import split

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.models.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(Declared):
  """A drafter that is not bound to a verifier yet.

  Base class of one frozen dataclass for each kind of drafter. Fields made by
  `declarations.option` are the options of the kind; `replace` returns a spec
  with other options, checked again.
  """

  @classmethod
  def parse(cls, name: str) -> Self:
    """Returns the spec of a name, with every option at its default."""
    if split(name)[1]:
      raise ValueError(
        f'drafter: {arguments.quote(name)} must have nothing after the colon;'
        f' write {split(name)[0]!r}.'
      )
    return cls()

  @classmethod
  def known_names(cls) -> tuple[str, ...]:
    """Returns the names that need no folder, as of bundled models."""
    return ()

  @property
  def takes_dtype(self) -> bool:
    """True if the `dtype` of `load` has an effect."""
    return False

  def load(
    self, dtype: str | None = None, mesh: 'jax.sharding.Mesh | None' = None
  ) -> Self:
    """Returns a spec that holds the parameters of the drafter."""
    return self

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the drafter to a verifier; reads its parameters if need be."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSpec[C](Spec):
  """A drafter whose parameters are read from files."""

  path: str | None = None
  checkpoint: C | None = dataclasses.field(
    default=None, compare=False, repr=False
  )

  @classmethod
  def parse(cls, name: str) -> Self:
    """Returns the spec of a name, a file or a folder."""
    return cls(path=name)

  @property
  def takes_dtype(self) -> bool:
    """True if the parameters are not loaded yet."""
    return self.checkpoint is None

  def load(
    self, dtype: str | None = None, mesh: 'jax.sharding.Mesh | None' = None
  ) -> Self:
    """Returns a spec with the checkpoint; the same spec if it has one."""
    if self.checkpoint is not None:
      return self
    checkpoint = self.read_checkpoint(dtype, mesh)
    return dataclasses.replace(self, checkpoint=checkpoint)

  def loaded_checkpoint(self) -> C:
    """Returns the checkpoint; reads it if the spec has none."""
    if self.checkpoint is not None:
      return self.checkpoint
    return self.read_checkpoint(None, None)

  def read_checkpoint(
    self, dtype: str | None, mesh: 'jax.sharding.Mesh | None'
  ) -> C:
    """Reads the checkpoint; the arguments are those of `load`."""
    raise NotImplementedError

  def require_path(self) -> str:
    """Returns the path."""
    if self.path is None:
      raise ValueError(
        'path: must be given for a drafter without a checkpoint; give a name or'
        ' a folder.'
      )
    return self.path

  def require_folder(self) -> str:
    """Returns the path; the folder of the download for a name on the hub."""
    from cascades.models import hub

    return hub.local_folder(self.require_path())


def parse_argument(name: str, content: str) -> int:
  """Returns the positive number after the colon of a name."""
  kind, text = split(name)
  count = arguments.parse_count(text)
  if not count:
    raise ValueError(
      f'drafter: {arguments.quote(name)} must end with a number of {content};'
      f" write '{kind}:3'."
    )
  return count
