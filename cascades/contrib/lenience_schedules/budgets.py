"""Lenience until so much is spent.

A rule that looks at one place bounds what it gives away there, and not what an
answer gives away. With a budget, an answer is lenient as long as it has some
left and strict from then on; what a token costs is known before the next is
judged. Adaptive budgets are proposed in arXiv 2608.03447, whose own rule was
not compared (unverified).
"""

import jax.numpy as jnp
from flax import struct

from cascades.methods.processing import IntScalar, RealScalar
from cascades.schedules import Schedule


@struct.dataclass
class Budget(Schedule):
  """Lenient while the divergences of an answer's places sum to less.

  What is spent is sum_i TV(law_i, p_i), over the tokens written; so the law of
  the whole answer is no further than the budget and one place more from the
  verifier's, in total variation.

  Attributes:
    total: To be spent, in [0, inf).
  """

  total: RealScalar
  looks = True

  def start(self, tokens, length):
    """Nothing is spent."""
    return jnp.zeros((), jnp.float32)

  def lenience(self, memory, asked, strict):
    """Lenient while something is left."""
    return jnp.where(memory < self.total, asked, strict)

  def after(self, memory, token, spent):
    """What the token's place gave away."""
    return memory + spent.divergence.astype(memory.dtype)


@struct.dataclass
class Mismatches(Schedule):
  """Lenient until so many tokens are not what the verifier would write.

  A token counts where the law makes it likelier than the verifier does: at
  temperature 0, each that is not the verifier's favourite.

  Attributes:
    most: How many.
  """

  most: IntScalar
  looks = True

  def start(self, tokens, length):
    """None yet."""
    return jnp.zeros((), jnp.int32)

  def lenience(self, memory, asked, strict):
    """Lenient while some are left."""
    return jnp.where(memory < self.most, asked, strict)

  def after(self, memory, token, spent):
    """One more, if it is."""
    return memory + spent.mismatch
