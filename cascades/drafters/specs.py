"""Kinds of drafters, and what options and configs call them.

A name stands for a drafter of one kind. Some kinds have names of their own,
'ngram:3' or 'self:3'; others are told by what lies in a folder. The verifier is
not needed to load a drafter, only to bind it:

  kind_of(name).load(name, dtype, mesh)   a `Checkpoint`, or a `Spec`
  spec.bind(verifier, **options)          a `BoundDrafter` for the verifier

To add a kind from outside: a `Kind` as an entry point of the group
`cascades.drafters`; names of the form 'NAME:ARGUMENT' find it.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import PyTree

from cascades import arguments
from cascades.decoding import BoundDrafter
from cascades.drafters.language_model import SelfDrafter
from cascades.drafters.ngram import NgramDrafter
from cascades.models import checkpoints
from cascades.registries import Registry, split

# Most last tokens that a text look-up compares: each is compiled by itself.
_WINDOW = 256
# Between a model and what drafts for it, and the kind of such names.
_AND, CHAIN = '+', 'chain'


@runtime_checkable
class Spec(Protocol):
  """A drafter that is loaded, and not yet bound to a verifier.

  Attributes:
    options: Names of the options that `bind` takes.
  """

  options: tuple[str, ...]

  def bind(
    self, verifier: checkpoints.Checkpoint, **options: Any
  ) -> BoundDrafter:
    """Binds the drafter to a verifier.

    Args:
      verifier: The verifier.
      **options: Those that are not at their defaults.

    Raises:
      ValueError: The two do not go together, or an option is out of its range.
    """


@dataclasses.dataclass(frozen=True)
class Drafting:
  """What drafts and is no model of its own, as memory is counted of models.

  Attributes:
    drafter: A `decoding.Drafter`; what it keeps of a row counts as its cache.
    vocab_size: Logits of a drafted token.
  """

  drafter: Any
  vocab_size: int

  def init_cache(self, params: PyTree, cache_length: int) -> PyTree:
    """What it keeps of a row."""
    return self.drafter.init(params, cache_length)


def _never(name: str) -> bool:
  return False


def _no_params(name: str, dtype: str | None) -> None:
  return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """A kind of drafter: the entry of a name.

  Attributes:
    pattern: How its names are written.
    says: What drafts, for people.
    load: Called as load(name, dtype, mesh); returns a `Checkpoint` or a `Spec`.
    describe: Called as describe(name, dtype); returns (model, or what counts as
      one, shapes of its parameters) without reading them; None where there are
      next to none.
    has_prefix: True if its names are the entry's name, or begin with that and a
      colon.
    matches: Says whether a name without such a beginning is of this kind.
    takes_dtype: Says whether a dtype has an effect on what a name stands for.
    looks_at_block: True if what it drafts depends on where a block began, and
      not on the text alone. A cascade's target holds block by block then, and
      there is no drafter alone.
  """

  pattern: str
  says: str
  load: Callable[[str, str | None, jax.sharding.Mesh | None], Any]
  describe: Callable[[str, str | None], tuple[Any, PyTree] | None] = _no_params
  has_prefix: bool = True
  matches: Callable[[str], bool] = _never
  takes_dtype: Callable[[str], bool] = lambda name: True
  looks_at_block: bool = True


DRAFTERS: Registry[Kind] = Registry('drafter', Kind)


def parts(name: str) -> tuple[str, str] | None:
  """Splits 'MODEL+DRAFTER'; None of any other name, or a file."""
  model, plus, drafter = name.partition(_AND)
  if not plus or not model or not drafter or pathlib.Path(name).exists():
    return None
  return model, drafter


def kind_of(name: str) -> Kind:
  """Returns the kind of drafter that a name stands for.

  Raises:
    ValueError: It is neither the name of a kind nor one that a file can have.
  """
  prefix, _ = split(name)
  # 'self:6+ngram' begins with the name of another kind.
  if _AND not in name and prefix in DRAFTERS and DRAFTERS[prefix].has_prefix:
    return DRAFTERS[prefix]
  arguments.file_name('drafter', name)
  if parts(name):
    return DRAFTERS.get(CHAIN)
  for kind in DRAFTERS.loaded():
    if kind.matches(name):
      return kind
  return DRAFTERS['model']


def count_of(name: str, what: str) -> int:
  """The number after the colon of a name.

  Raises:
    ValueError: There is none, or it is 0.
  """
  kind, text = split(name)
  count = arguments.parse_count(text)
  if not count:
    raise ValueError(
      f"drafter: {arguments.quote(name)} names no {what}; write '{kind}:3'."
    )
  return count


@dataclasses.dataclass(frozen=True)
class NgramSpec:
  """A text look-up.

  Attributes:
    window: Last tokens that must stand somewhere else too; None for those of
      `NgramDrafter`.
  """

  window: int | None = None
  options = ()

  @classmethod
  def load(cls, name: str, dtype: Any = None, mesh: Any = None) -> 'NgramSpec':
    """Reads 'ngram' or 'ngram:3'."""
    if name == 'ngram':
      return cls()
    window = count_of(name, 'tokens')
    if window > _WINDOW:
      raise ValueError(
        f'drafter: {name!r} compares more tokens than a text look-up can; write'
        f" 'ngram:{_WINDOW}' or less."
      )
    return cls(window)

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds it; it fits every verifier."""
    if self.window is None:
      return BoundDrafter(NgramDrafter(), ())
    return BoundDrafter(NgramDrafter(self.window, self.window), ())


@dataclasses.dataclass(frozen=True)
class SelfSpec:
  """The verifier's own first layers.

  Attributes:
    layers: How many.
  """

  layers: int
  options = ()

  @classmethod
  def load(cls, name: str, dtype: Any = None, mesh: Any = None) -> 'SelfSpec':
    """Reads 'self:3'."""
    return cls(count_of(name, 'layers'))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds it.

    Raises:
      ValueError: The verifier has no more layers than these.
    """
    first = verifier.model.first_layers(self.layers)
    return BoundDrafter(SelfDrafter(first), verifier.params)


for _name, _spec, _says in (
  ('ngram', NgramSpec, 'the text itself, where it repeats itself'),
  ('self', SelfSpec, "the verifier's own first layers"),
):
  DRAFTERS.register(
    _name,
    Kind(
      pattern=f'{_name}:3',
      says=_says,
      load=_spec.load,
      takes_dtype=_never,
      looks_at_block=_spec is NgramSpec,
    ),
    builtin=True,
  )
