"""Drafters before they are bound to a verifier: the object is the option."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from cascades import arguments
from cascades.arguments import Declared, options_of
from cascades.decoding.drafter import BoundDrafter, Drafter, full_length_draft
from cascades.models import checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnboundDrafter(Declared):
  """A drafter that is not bound to a verifier yet.

  Base class of one frozen dataclass for each kind of drafter. Fields made by
  `arguments.option` are options: commands have a flag for each, and
  `replace` returns a drafter with other values, checked again.

  Attributes:
    syntax: Form of the names of the kind and what it is, for errors.
    known_names: Names that need no folder, as of bundled models.
    reads_files: True if `load` reads files. `claims` then tells the names of
      the kind; the others are the registered name, alone or before ':ARGUMENT'.
    is_language_model: True if the drafter can decode alone.
    depends_on_block: True if q depends on where a block began, and not on the
      text alone. The target of a cascade then holds block by block.
  """

  syntax = ''
  known_names: ClassVar[tuple[str, ...]] = ()
  reads_files = is_language_model = False
  depends_on_block = True

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True if a name or a folder is a drafter of the kind."""
    return False

  @classmethod
  def load(
    cls,
    name: str | pathlib.Path,
    dtype: str | None = None,
    mesh: jax.sharding.Mesh | None = None,
  ) -> Self:
    """Loads the drafter of a name, with every option at its default.

    Args:
      name: A registered name with its argument, a known name or a folder.
      dtype: Dtype of the parameters; None for the stored one.
      mesh: Devices that a language model is divided among.
    """
    kind, _, argument = str(name).partition(':')
    if argument:
      raise ValueError(f'drafter: {kind!r} takes no argument after a colon.')
    return cls()

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the drafter to a verifier; one without parameters, itself."""
    drafter: Any = self
    return BoundDrafter(drafter, ())


@dataclasses.dataclass(frozen=True)
class NamedDrafter:
  """A drafter whose files are not read yet."""

  name: str
  kind: type[UnboundDrafter]
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def replace(self, **options: Any) -> Self:
    """Returns the drafter with other options."""
    declared = options_of(self.kind)
    options = {name: declared[name].validate(x) for name, x in options.items()}
    return dataclasses.replace(self, options={**self.options, **options})


@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
  """Drafts nothing: with gamma = 0, plain decoding with the verifier."""

  def propose(self, params, state, context, *, gamma, drafts):
    """Returns drafts without a token; q is undefined after them."""
    draft = full_length_draft(jnp.zeros((drafts, 0), jnp.int32), None, 0)
    draft = draft._replace(has_bonus_probs=jnp.zeros(drafts, bool))
    return draft, state, context.verifier_cache


def parse_argument(name: str | pathlib.Path, content: str) -> int:
  """Returns the positive number after the colon of a name."""
  kind, _, text = str(name).partition(':')
  count = arguments.parse_count(text)
  if not count:
    raise ValueError(
      f'drafter: {arguments.quote(name)} must end with a number of {content};'
      f" write '{kind}:3'."
    )
  return count
