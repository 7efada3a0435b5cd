"""Lenience inside of a span, such as a model's thinking, or outside of it.

Serving engines relax verification where a model thinks to itself and stay
strict where it answers: TensorRT-LLM's relaxed acceptance, and a patch to vLLM
(pull request 45229, closed) by which a draft x stays inside of a thinking span
if p(x) >= max p / 2 and x is in the verifier's top 3, which is `token_v3` at
lenience 0.5 with a cap.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from cascades.methods.processing import IntScalar
from cascades.schedules import Schedule


@struct.dataclass
class Span(Schedule):
  """Lenient on one side of two markers, strict on the other.

  The token after `begins` is inside, and so is `ends` itself. A span may begin
  in the prompt; one that never ends goes on to the end of the answer.

  Attributes:
    begins: The token that a span begins with.
    ends: The token that it ends with.
    inside: Whether to be lenient inside; else outside.
  """

  begins: IntScalar
  ends: IntScalar
  inside: Bool[Array, ''] | bool

  def start(self, tokens, length):
    """Whether the prompt ends inside of a span."""
    at = jnp.arange(tokens.shape[-1])
    there = at < length

    def latest(marker):
      return jnp.where(there & (tokens == marker), at, -1).max()

    return latest(self.begins) > latest(self.ends)

  def lenience(self, memory, asked, strict):
    """As it is where the next token stands."""
    return jnp.where(memory == self.inside, asked, strict)

  def after(self, memory, token, spent):
    """Inside after the first marker, outside after the second."""
    return jnp.where(
      token == self.begins, True, jnp.where(token == self.ends, False, memory)
    )

  def refusal(self, new, forbidden):
    """Where a span could not end, or not begin."""
    for marker in self.begins, self.ends:
      if int(marker) in forbidden:
        return f'token {int(marker)}, one of its markers, is forbidden'
    return None
