"""The static configuration of the compiled step."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool

from cascades import methods
from cascades.decoding.state import Models, Row
from cascades.verification_config import (
  SINGLE_DRAFT,
  STANDARD,
  VerificationConfig,
)

# Without drafts there is nothing to verify: one program for all settings.
_WITHOUT_DRAFTS = dict(
  method=methods.get_method('speed'),
  verification=VerificationConfig(bonus='verifier'),
  drafts=1,
  tree_size=None,
)


def tree_tokens(gamma: int, drafts: int, tree_size: int | None = None) -> int:
  """Returns the number of drafted tokens that the verifier reads per block.

  A single draft shares no tokens, and is read whatever `tree_size` is.
  """
  if drafts == 1 or tree_size is None:
    return gamma * drafts
  return min(gamma * drafts, tree_size)


@dataclasses.dataclass(frozen=True)
class StepConfig:
  """The settings that are compiled into a step. Hashable: a static argument.

  Attributes:
    models: The verifier and the drafter.
    method: Defines acceptance, residual and law.
    gamma: Tokens drafted per block, 0 or more. With 0 the verifier decodes
      alone, and the other settings have no effect.
    verification: The kind of verification.
    drafts: Drafts per block.
    tree_size: Largest number of drafted tokens that the verifier reads per
      block, at least `drafts`; None for all. Drafts share common prefixes, and
      end before a level of the tree that might not fit.
    always_reads_block: True if the verifier reads a whole block even if no row
      has a draft; used to time blocks.

  Raises:
    ValueError: The drafter does not support so many drafts, or their use.
  """

  models: Models
  method: methods.Method
  gamma: int
  verification: VerificationConfig = STANDARD
  drafts: int = 1
  tree_size: int | None = None
  always_reads_block: bool = False

  def __post_init__(self):
    if not self.gamma:
      for name, value in _WITHOUT_DRAFTS.items():
        object.__setattr__(self, name, value)
      return
    drafter, kind = self.models.drafter, self.verification.verification
    name, limit = type(drafter).__name__, drafter.max_drafts
    if limit is not None and self.drafts > limit:
      raise ValueError(
        f'drafts: must be at most {limit} with {name}, got {self.drafts}.'
      )
    if not drafter.independent and kind != 'match':
      raise ValueError(
        f'verification: {kind!r} needs independent draws, which {name} does'
        " not make; take 'match'."
      )

  def needs_bonus_probs(self, state: Row) -> Bool[Array, '']:
    """Returns True if the target of the bonus token depends on q."""
    if self.drafts > 1 or self.verification.verification not in SINGLE_DRAFT:
      return jnp.ones((), bool)
    if not self.method.law_uses_q or self.verification.bonus != 'target':
      return jnp.zeros((), bool)
    strict = self.method.strict
    if strict is None:
      return jnp.ones((), bool)
    return state.lenience != strict

  @property
  def allows_empty_draft(self) -> bool:
    """True if a block without drafts is read as one token."""
    may_be_empty = self.models.drafter.allows_empty_draft and self.drafts == 1
    return may_be_empty and self.gamma > 0 and not self.always_reads_block

  @property
  def cache_headroom(self) -> int:
    """The number of cache slots that a step may write past a sequence."""
    return (self.gamma + 1) * self.drafts

  @property
  def tree_tokens(self) -> int:
    """The number of drafted tokens that the verifier reads per block."""
    return tree_tokens(self.gamma, self.drafts, self.tree_size)
