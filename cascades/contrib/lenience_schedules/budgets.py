"""Budgets of an answer's divergence, or of its mismatches.

A rule bounds the divergence from the verifier at one position, and not that of
an answer. With a budget, an answer is lenient until the budget is used up and
strict from then on; the cost of a token is known before the next one is
verified. arXiv 2608.03447 proposes adaptive budgets; its own rule was not
compared (unverified).
"""

import jax.numpy as jnp
from flax import struct

from cascades.methods.processing import IntScalar, RealScalar
from cascades.schedules import ScheduleBase


@struct.dataclass
class Budget(ScheduleBase):
  """Lenient while the sum of an answer's divergences is less than a total.

  The sum is sum_i TV(law_i, p_i) over the emitted tokens. So the total
  variation between the law of the whole answer and the verifier's is at most
  the budget plus the divergence of one position.

  Attributes:
    total: The budget, in [0, inf).
  """

  total: RealScalar
  needs_costs = True

  def start(self, tokens, length):
    """Returns a sum of zero."""
    return jnp.zeros((), jnp.float32)

  def lenience(self, state, requested, strict):
    """Returns the requested lenience until the budget is used up."""
    return jnp.where(state < self.total, requested, strict)

  def update(self, state, token, cost):
    """Adds the divergence at the token's position."""
    assert cost is not None
    return state + cost.divergence.astype(state.dtype)


@struct.dataclass
class Mismatches(ScheduleBase):
  """Lenient until an answer has a number of mismatches.

  A token is a mismatch if the law makes it likelier than the verifier does: at
  temperature 0, every token that is not the verifier's argmax.

  Attributes:
    limit: Number of mismatches.
  """

  limit: IntScalar
  needs_costs = True

  def start(self, tokens, length):
    """Returns a count of zero."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, state, requested, strict):
    """Returns the requested lenience below the limit."""
    return jnp.where(state < self.limit, requested, strict)

  def update(self, state, token, cost):
    """Adds one for a mismatch."""
    assert cost is not None
    return state + cost.mismatch
