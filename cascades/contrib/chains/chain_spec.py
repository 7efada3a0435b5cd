"""The spec of a chained drafter: a model, and what drafts for the model.

'MODEL+DRAFTER' names two drafters, such as 'tiny-drafter+ngram' or
'self:6+tiny-drafter'. The two decode by a method of their own; see
`chain_drafter`. With a fuzzy gate for both methods that is PyramidSD (arXiv
2510.12966), which was not compared with its authors' code (unverified).
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from cascades import arguments
from cascades.declarations import option
from cascades.drafters import drafter_kinds, drafter_spec
from cascades.drafters.language_model_spec import LanguageModelSpec
from cascades.drafters.self_speculative_spec import SelfSpeculativeSpec

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.models.checkpoints import Checkpoint

_APPLIES = "chained drafters, such as 'self:6+ngram'"


def _check_method(value: Any) -> Any:
  # Importing methods imports JAX, which flags and help do without.
  from cascades import methods

  methods.get_method(value, 'inner_method')
  return value


def _check_lenience(value: Any) -> float:
  return arguments.number('inner_lenience', value, -math.inf, math.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainSpec(drafter_spec.Spec):
  """A model that drafts for the verifier, and a drafter of that model.

  Attributes:
    outer: The model that drafts: a language model or the verifier's own first
      layers.
    inner: The drafter of that model.
    inner_method: Method that decides which inner drafts the model accepts.
    inner_lenience: Lenience of the inner method; None for its strict lenience.
    inner_gamma: Tokens per inner block.
  """

  outer: drafter_spec.Spec
  inner: drafter_spec.Spec
  inner_method: Any = option(
    None,
    kind=str,
    help='Method of the model and its drafter; None for speed.',
    applies=_APPLIES,
    needs=('drafting',),
    check=_check_method,
  )
  inner_lenience: float | None = option(
    None,
    kind=float,
    help='Lenience of the inner method; None for its strict lenience.',
    applies=_APPLIES,
    needs=('drafting',),
    check=_check_lenience,
  )
  inner_gamma: int = option(
    2,
    kind=int,
    low=1,
    help='Tokens per block of the model and its drafter.',
    applies=_APPLIES,
    needs=('drafting',),
  )

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for names such as 'tiny-drafter+ngram'."""
    return drafter_kinds.split_chain(name) is not None

  @classmethod
  def parse(cls, name: str) -> 'ChainSpec':
    """Returns the spec of a name such as 'tiny-drafter+ngram'."""
    names = drafter_kinds.split_chain(name) or (name, '')
    outer, inner = map(drafter_kinds.parse_spec, names)
    return cls(outer=outer, inner=inner)

  @property
  def takes_dtype(self) -> bool:
    """True if the model or its drafter takes a dtype."""
    return self.outer.takes_dtype or self.inner.takes_dtype

  def load(
    self, dtype: str | None = None, mesh: 'jax.sharding.Mesh | None' = None
  ) -> 'ChainSpec':
    """Returns a spec with the parameters of the model and of its drafter."""
    return dataclasses.replace(
      self,
      outer=self.outer.load(dtype, mesh),
      inner=self.inner.load(dtype, mesh),
    )

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the drafter to the model, and the two to a verifier."""
    from cascades import methods
    from cascades.contrib.chains.chain_drafter import chain
    from cascades.drafters import token_checks

    method = methods.get_method(self.inner_method or 'speed', 'inner_method')
    lenience = method.or_strict(self.inner_lenience, 'inner_lenience')
    checkpoint = self._outer_model(verifier)
    token_checks.check_pair(verifier, checkpoint)
    inner = self.inner.bind(checkpoint)
    if method.bind:
      method = method.bind(checkpoint, inner)
    return chain(
      checkpoint.model,
      checkpoint.params,
      inner,
      method=method,
      lenience=lenience,
      gamma=self.inner_gamma,
    )

  def _outer_model(self, verifier: 'Checkpoint') -> 'Checkpoint':
    """Returns the outer model as a checkpoint."""
    if isinstance(self.outer, LanguageModelSpec):
      return self.outer.loaded_checkpoint()
    if isinstance(self.outer, SelfSpeculativeSpec):
      model = verifier.model.first_layers(self.outer.layers)
      return verifier._replace(model=model)
    raise ValueError(
      "drafter: must have a language model before '+', for which the part after"
      " '+' drafts; give a model, or 'self:N', the verifier's first N layers."
    )


KIND = drafter_kinds.DrafterKind(
  spec=ChainSpec,
  syntax='tiny-drafter+ngram',
  help='a model, and what drafts for the model',
  claims=ChainSpec.claims,
)
