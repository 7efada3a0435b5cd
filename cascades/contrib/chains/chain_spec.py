"""Three models by name: a middle one that drafts, and what drafts for it.

'MIDDLE+SMALL' is a model and a drafter of its own, each as `pairing` knows it:
'tiny-drafter+ngram', 'self:6+tiny-drafter'. The two decode by a method of their
own; see `chain_drafter`. With a fuzzy gate for both methods that is PyramidSD
(arXiv 2510.12966), which was not compared with its authors' code (unverified).
"""

import dataclasses
from typing import Any

from cascades import arguments, drafters, methods
from cascades.contrib.chains.chain_drafter import chain
from cascades.drafters import pairing, specs
from cascades.models import checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
  """Options of the inner pair: the middle model and its own drafter.

  Attributes:
    method: Decides which drafts the middle model keeps.
    lenience: The method's lenience; None for its strict one.
    gamma: Tokens per block of the two.

  Raises:
    ValueError: A value is out of its range; names the option.
  """

  method: str | methods.Method = 'speed'
  lenience: float | None = None
  gamma: int = 2

  def __post_init__(self):
    method = methods.get_method(self.method, 'inner_method')
    lenience = self.lenience
    if lenience is None:
      lenience = method.strict
    if lenience is None:
      raise ValueError(
        f'inner_lenience: {method.name} is nowhere strict; give one.'
      )
    checked = dict(
      method=method,
      lenience=arguments.number(
        'inner_lenience', lenience, -float('inf'), float('inf')
      ),
      gamma=arguments.integer('inner_gamma', self.gamma, 1),
    )
    for name, value in checked.items():
      # Frozen for everyone else.
      object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True)
class ChainSpec:
  """A model that drafts, and what drafts for it.

  Attributes:
    middle: The model: a `Checkpoint`, or the verifier's first layers.
    small: Drafts for it, as `specs.Kind.load` gives it.
  """

  middle: Any
  small: Any
  options = ('inner_method', 'inner_lenience', 'inner_gamma')

  def bind(
    self, verifier: checkpoints.Checkpoint, **options: Any
  ) -> drafters.BoundDrafter:
    """Binds the two to a verifier.

    Args:
      verifier: The verifier.
      **options: Fields of `Inner`, behind 'inner_'.

    Raises:
      ValueError: The first is no language model, the models do not share a
        tokenizer, or an option is out of its range.
    """
    inner = Inner(**{k.removeprefix('inner_'): v for k, v in options.items()})
    middle = self.middle
    if isinstance(middle, specs.SelfSpec):
      first = middle.bind(verifier)
      middle = verifier._replace(model=first.drafter.model)
    if not isinstance(middle, checkpoints.Checkpoint):
      raise ValueError(
        "drafter: what stands before '+' is no language model, which could be"
        ' drafted for; take a model, or its first layers by self:N.'
      )
    pairing.check_pair(verifier, middle)
    small = pairing.bind_drafter(middle, self.small)
    return chain(
      middle.model,
      middle.params,
      small,
      inner.method,
      inner.lenience,
      inner.gamma,
    )


def _load(name: str, dtype: str | None, mesh) -> ChainSpec:
  return ChainSpec(
    *(pairing.load_drafter(part, dtype, mesh) for part in specs.parts(name))
  )


def _describe(name: str, dtype: str | None):
  # The middle model is by far the larger.
  return pairing.describe(specs.parts(name)[0], dtype)


KIND = specs.Kind(
  pattern='tiny-drafter+ngram',
  says='a model, and what drafts for it',
  has_prefix=False,
  load=_load,
  describe=_describe,
  takes_dtype=lambda name: any(
    specs.kind_of(part).takes_dtype(part) for part in specs.parts(name)
  ),
)
