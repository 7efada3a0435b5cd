"""The result of verifying a block of drafted tokens."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int


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
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  next_source: Int[Array, '']
  deferred: Bool[Array, 'gamma_1']
  draft_index: Int[Array, '']
  is_valid: Bool[Array, '']
  drafts: Int[Array, 'gamma_1'] | None = None
  accept_uniforms: Float[Array, 'gamma_1'] | None = None
