"""Leniences by the position in the answer.

The first tokens of an answer decide most of it. Strict decoding there and
lenience later is the idea of SecureSD and of others, whose code was not
inspected (unverified).
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from cascades.methods.processing import IntScalar
from cascades.schedules import ScheduleBase


@struct.dataclass
class First(ScheduleBase):
  """Strict for the first tokens of an answer.

  Attributes:
    tokens: Number of strict tokens.
  """

  tokens: IntScalar

  def start(self, tokens, length):
    """Returns position 0."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, state, requested, strict):
    """Returns the strict lenience for the first tokens."""
    return jnp.where(state < self.tokens, strict, requested)

  def update(self, state, token, cost):
    """Advances by one position."""
    return state + 1


@struct.dataclass
class Ramp(ScheduleBase):
  """Rises from strict to the requested lenience in equal steps.

    lenience_t = strict + (requested - strict) min(1, t / tokens),

  for t = 0, 1, ...

  Attributes:
    tokens: Number of steps.
  """

  tokens: IntScalar

  def start(self, tokens, length):
    """Returns position 0."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, state, requested, strict):
    """Returns the lenience of this step."""
    steps = jnp.maximum(self.tokens, 1)
    share = jnp.where(state < self.tokens, state / steps, 1)
    # Exact at both ends, despite rounding and an infinite lenience.
    rising = strict + (requested - strict) * share
    return jnp.select([share >= 1, share > 0], [requested, rising], strict)

  def update(self, state, token, cost):
    """Advances by one position."""
    return state + 1


@struct.dataclass
class Each(ScheduleBase):
  """A lenience of its own for each token; ignores the requested one.

  Attributes:
    leniences: The lenience of each token of the longest answer; the last one
      also holds for later drafts.
  """

  leniences: Float[Array | np.ndarray, 'n']

  def start(self, tokens, length):
    """Returns position 0."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, state, requested, strict):
    """Returns the lenience of this position."""
    return self.leniences[jnp.minimum(state, self.leniences.shape[-1] - 1)]

  def update(self, state, token, cost):
    """Advances by one position."""
    return state + 1

  def refusal(self, max_new_tokens, forbidden_ids):
    """Refuses answers that may be longer than the list of leniences."""
    count = self.leniences.shape[-1]
    if max_new_tokens <= count:
      return None
    return (
      f'an answer may have {max_new_tokens} tokens, and there are {count}'
      ' leniences; list more, or lower max_new_tokens'
    )
