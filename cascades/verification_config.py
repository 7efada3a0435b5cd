"""Kinds of verification and sources of tokens. Does not import JAX.

The functions of `cascades.verification` are registered there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from cascades import arguments
from cascades.arguments import Option, Registry

# Sources of tokens; each constant is the index of its name.
SOURCES = ('prompt', 'draft', 'residual', 'bonus')
PROMPT, DRAFT, RESIDUAL, BONUS = range(4)

# Verifications that keep the law: of one draft per block, and of any number.
SINGLE_DRAFT = ('token', 'block')
MULTI_DRAFT = ('multi_round', 'k_seq', 'match', 'traversal')
GATES = ('raw', 'processed')
BONUSES = ('target', 'verifier')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
  """A kind of verification: an entry of the registry.

  Attributes:
    decide: Called as decide(inputs, accept_uniforms, sample_uniforms) with
      `VerificationInputs` and uniform numbers, and with the keyword `window`
      if there is one; returns a `Verdict`.
    any_drafts: True if a block may have several drafts.
    keeps_law: True if each token follows the method's law, wherever blocks
      begin. Otherwise a text has no single probability.
    draws_tokens: True if a token is drawn at each position; each then gets
      `processing.uniforms_per_token` uniform numbers instead of one per draft.
    window: Default of the number of 2 or more that the name may end with, as in
      'look_ahead:4'; blocks have at least so many drafts. None: no number.
    blocks: Enumerates all blocks with probabilities, for `proof.enumeration`.
      None for the core's, which it knows.
  """

  decide: Callable[..., Any]
  any_drafts: bool = False
  keeps_law: bool = True
  draws_tokens: bool = False
  window: int | None = None
  blocks: Callable[..., Any] | None = None


VERIFICATIONS: Registry[Verification] = Registry('verification', Verification)


@dataclasses.dataclass(frozen=True)
class VerificationConfig:
  """The verification of blocks; recorded with every result."""

  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'

  def __post_init__(self):
    for name, values in ('gate', GATES), ('bonus', BONUSES):
      declared = Option(name=name, default=values[0], help='', choices=values)
      declared.validate(getattr(self, name))

  @property
  def kind(self) -> Verification:
    """The entry of the verification's name."""
    return VERIFICATIONS[self.verification.partition(':')[0]]

  @property
  def window(self) -> int | None:
    """The number at the end of the name, or its default; None for none."""
    kind = self.kind
    name, colon, text = self.verification.partition(':')
    if not colon:
      return kind.window
    window = arguments.parse_count(text) or 0
    if kind.window is None or window < 2:
      example = name + ':2' * bool(kind.window)
      raise ValueError(
        f'verification: {arguments.quote(self.verification)} is not known;'
        f' write {example!r}.'
      )
    return window


# Token verification, with raw gates and the bonus token from the target.
STANDARD = VerificationConfig()
