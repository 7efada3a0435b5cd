"""The one entrance to every kind of verification."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.verdict import Verdict
from cascades.verification_config import (
  SEQUENTIAL,
  STANDARD,
  VerificationConfig,
)


def verify(
  method: methods.Method,
  lenience: Float[Array, ''] | Float[Array, 'K gamma_1'],
  key: jax.Array,
  tokens: Int[Array, 'K gamma'],
  row: Callable[[Array, Array], methods.Distributions],
  config: VerificationConfig = STANDARD,
  count: Int[Array, 'K'] | None = None,
  known: Bool[Array, 'K'] | None = None,
  passed: bool = False,
) -> Verdict:
  """Verifies a block.

  Args:
    method: What to keep and what to sample instead.
    lenience: How readily the method keeps drafts: everywhere, or after i tokens
      of draft j.
    key: Used for this block only.
    tokens: K drafts of gamma >= 0 tokens.
    row: The distributions after i tokens of draft j, 0 <= i <= gamma; their
      `q` is what the next token of the draft was drawn from, and their gates
      are those of its `gate`.
    config: How.
    count: Tokens of each draft that are there; None for all of them.
    known: Whether the row after the last of them has a `q`. If not, the token
      that follows it is the verifier's. None for yes.
    passed: That no draft has a token, as the caller knows. The verdict is the
      same as where their count says so, and only the first row is asked for.

  Returns:
    The verdict.
  """
  paths, gamma = tokens.shape
  if count is None:
    count = jnp.full(paths, gamma)
  if known is None:
    known = jnp.ones(paths, bool)

  zero = jnp.zeros((), jnp.int32)
  size = jax.eval_shape(row, zero, zero).q.shape[-1]
  ask = single_draft.Question(
    method=method,
    leniences=jnp.broadcast_to(lenience, (paths, gamma + 1)),
    tokens=tokens,
    count=count,
    known=known,
    row=row,
    size=size,
    from_target=config.bonus == 'target',
  )
  draw = processing.uniforms_per_token(size)
  each = draw if config.kind.draws_tokens else paths
  # One draw for all of a block's numbers; its last are always in one place.
  numbers = processing.draw_uniforms(key, gamma * each + draw)
  chances, last = jnp.split(numbers, [gamma * each])
  if (not gamma or passed) and config.verification != SEQUENTIAL:
    return single_draft.passed(ask, last)
  return config.decide(ask, chances, last)
