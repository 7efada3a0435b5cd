"""Leniences inside and outside of a span, such as a model's thinking.

Serving engines relax verification while a model thinks and stay strict while
it answers: TensorRT-LLM's relaxed acceptance, and a patch to vLLM
(pull request 45229, closed) that accepts a draft x inside of a thinking span if
p(x) >= max p / 2 and x is in the verifier's top 3: `token_v3` at lenience 0.5
with the cap 'top:3'.
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool

from cascades.methods.processing import IntScalar
from cascades.schedules import ScheduleBase


@struct.dataclass
class Span(ScheduleBase):
  """Lenient inside of a span of tokens and strict outside, or the reverse.

  The token after `start_token` is inside, and so is `end_token` itself. A span
  may begin in the prompt; without an end it lasts to the end of the answer.

  Attributes:
    start_token: The token that a span begins with.
    end_token: The token that a span ends with.
    inside: True to be lenient inside, False to be lenient outside.
  """

  start_token: IntScalar
  end_token: IntScalar
  inside: Bool[Array, ''] | bool | np.bool_

  def start(self, tokens, length):
    """Returns True if the prompt ends inside of a span."""
    position = jnp.arange(tokens.shape[-1])
    in_prompt = position < length

    def latest(marker):
      return jnp.where(in_prompt & (tokens == marker), position, -1).max()

    return latest(self.start_token) > latest(self.end_token)

  def lenience(self, state, requested, strict):
    """Returns the lenience of the side that the next token is on."""
    return jnp.where(state == self.inside, requested, strict)

  def update(self, state, token, cost):
    """Enters a span at its first marker and leaves it at the second."""
    return jnp.where(
      token == self.start_token,
      True,
      jnp.where(token == self.end_token, False, state),
    )

  def refusal(self, max_new_tokens, forbidden_ids):
    """Refuses answers in which a marker is forbidden."""
    for marker in self.start_token, self.end_token:
      if int(marker) in forbidden_ids:
        return f'its marker, token {int(marker)}, is in forbidden_tokens'
    return None
