"""What verification says of a block."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Int


class Verdict(NamedTuple):
  """What verification says of one block of gamma drafted tokens.

  Attributes:
    num_accepted: How many drafts stay, 0 to gamma.
    next_token: The token after them.
    next_source: Where it comes from: RESIDUAL after a rejection, BONUS where
      nothing more was drafted, DRAFT only without blocks.
    deferred: [gamma + 1], where the rule defers the drafted token.
    path: Which draft of several begins with the tokens that stay.
    is_valid: Whether the token after them was drawn from a distribution, and
      acceptance of the drafts was a number; not where a model or the method
      gave nan.
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  next_source: Int[Array, '']
  deferred: Bool[Array, 'gamma_1']
  path: Int[Array, '']
  is_valid: Bool[Array, '']
