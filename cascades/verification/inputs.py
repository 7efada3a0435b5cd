"""The inputs and the result of every kind of verification."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.verification_config import STANDARD, VerificationConfig


class Verdict(NamedTuple):
  """The outcome of verifying one block of up to gamma drafted tokens.

  Attributes:
    num_accepted: Accepted drafted tokens, 0 to gamma.
    next_token: The token after the accepted tokens.
    next_source: Source of `next_token`: RESIDUAL after a rejection, BONUS
      after a fully accepted draft.
    deferred: True where the rule defers the drafted token; at the bonus, where
      a rule about the whole position defers in `token` verification.
    draft_index: A draft that begins with the accepted tokens.
    is_valid: True if `next_token` was drawn from a distribution and each
      examined draft was accepted with a probability; False if a model or the
      method gave nan.
    drafts: The draft that was examined at each position, -1 for none; `verify`
      fills them in.
    accept_uniforms: The uniform number that each draft was compared with, nan
      for none. None where acceptance is not per token.
    probs: q, p and the law of each accepted draft, and of `next_token`, whose q
      is undefined after a whole draft without `has_bonus_probs`; None unless
      requested.
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  next_source: Int[Array, '']
  deferred: Bool[Array, 'gamma_1']
  draft_index: Int[Array, '']
  is_valid: Bool[Array, '']
  drafts: Int[Array, 'gamma_1'] | None = None
  accept_uniforms: Float[Array, 'gamma_1'] | None = None
  probs: Float[Array, 'gamma_1 3'] | None = None


@dataclasses.dataclass(frozen=True)
class VerificationInputs:
  """A block of K drafts, its distributions, and the method to verify it by.

  Attributes:
    method: Defines acceptance, residual and law.
    lenience: The lenience of the row.
    tokens: The drafted tokens.
    draft_lengths: Tokens of each draft; later tokens are ignored.
    has_bonus_probs: True if q is known after a draft's last token. Otherwise
      the verifier alone decides the token there.
    distributions_at: Called as distributions_at(position, draft); returns the
      distributions after `position` tokens, 0 to gamma, of a draft. The next
      token of the draft was drawn from their `q`.
    config: The kind of verification, and the source of the bonus token.
    empty_draft: True if no token was drafted. Skips acceptance and evaluates
      only the first position; the result equals draft_lengths == 0.
    with_probs: True to return q, p and the law of the emitted tokens.
  """

  method: methods.Method
  lenience: Float[Array, '']
  tokens: Int[Array, 'K gamma']
  draft_lengths: Int[Array, 'K']
  has_bonus_probs: Bool[Array, 'K']
  distributions_at: Callable[..., methods.Distributions]
  config: VerificationConfig = STANDARD
  empty_draft: bool = False
  with_probs: bool = False

  @property
  def gamma(self) -> int:
    """The largest number of tokens of a draft."""
    return self.tokens.shape[1]

  @functools.cached_property
  def probs_shape(self) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a distribution, [V]."""
    zero = jnp.zeros((), jnp.int32)
    return jax.eval_shape(self.distributions_at, zero, zero).q

  @property
  def vocab_size(self) -> int:
    """The number of tokens of the vocabulary, V."""
    return self.probs_shape.shape[-1]

  @property
  def reported(self) -> tuple[Callable[..., Array], ...]:
    """The functions whose values `with_probs` requests; () without it."""
    functions = lambda d, _: d.q, lambda d, _: d.p, self.method.law
    return functions if self.with_probs else ()

  @property
  def bonus_from_target(self) -> bool:
    """True if the bonus token is drawn from the law, False if from p."""
    return self.config.bonus == 'target'

  def bonus_distribution(
    self, d: methods.Distributions, law: Array, draft: Array | int
  ) -> Array:
    """Returns the distribution of the token after a fully accepted draft."""
    if not self.bonus_from_target:
      return d.p
    return jnp.where(self.has_bonus_probs[draft], law, d.p)
