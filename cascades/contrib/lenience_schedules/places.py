"""Lenience by the place in the answer.

What is written first decides the most, and is where answers are steered: to be
strict there and lenient later is the idea of SecureSD and of others, of whose
code nothing was looked at (unverified).
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from cascades.methods.processing import IntScalar
from cascades.schedules import Schedule


@struct.dataclass
class First(Schedule):
  """Strict for the first tokens of an answer.

  Attributes:
    tokens: How many.
  """

  tokens: IntScalar

  def start(self, tokens, length):
    """No token is written yet."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, memory, asked, strict):
    """Strict, until they are written."""
    return jnp.where(memory < self.tokens, strict, asked)

  def after(self, memory, token, spent):
    """One more."""
    return memory + 1


@struct.dataclass
class Ramp(Schedule):
  """From strict to the lenience asked for, in equal steps from token to token.

    lenience_t = strict + (asked - strict) min(1, t / tokens),  t = 0, 1, ...

  Attributes:
    tokens: After so many the lenience is what was asked for.
  """

  tokens: IntScalar

  def start(self, tokens, length):
    """No token is written yet."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, memory, asked, strict):
    """As far as the answer is."""
    share = jnp.minimum(1, memory / jnp.maximum(self.tokens, 1))
    # At the end exactly what was asked for, whatever rounding makes of it.
    return jnp.where(share < 1, strict + (asked - strict) * share, asked)

  def after(self, memory, token, spent):
    """One more."""
    return memory + 1


@struct.dataclass
class Each(Schedule):
  """A lenience of its own for each token of an answer; none is asked for.

  Attributes:
    leniences: eta(t), as many as an answer may have tokens; the last one holds
      for whatever is drafted beyond.
  """

  leniences: Float[Array | np.ndarray, 'n']

  def start(self, tokens, length):
    """No token is written yet."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, memory, asked, strict):
    """What the token has."""
    return self.leniences[jnp.minimum(memory, self.leniences.shape[-1] - 1)]

  def after(self, memory, token, spent):
    """One more."""
    return memory + 1

  def refusal(self, new, forbidden):
    """Where the answer may go on when the leniences are at an end."""
    count = self.leniences.shape[-1]
    if new <= count:
      return None
    return f'an answer may have {new} tokens, and there are {count} leniences'
