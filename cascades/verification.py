"""Which drafted tokens stay, and the token after them.

One verifier for every method: token by token from the left, keep a draft with
the method's acceptance; at the first one that is not kept, sample the method's
residual; if all are kept, sample the method's law once more (the bonus).
The emitted tokens then follow the law exactly (Leviathan et al. 2023, Chen et
al. 2023, for law = p; Narasimhan et al. 2025 for any).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods, sampling


class Verdict(NamedTuple):
  """What verification says of one block of gamma drafted tokens.

  Attributes:
    num_accepted: How many tokens stay, 0 to gamma.
    next_token: The token after them.
    rejected: Whether a draft was rejected: the next token is then from the
      residual, else it is the bonus.
    deferred: [gamma], where the rule defers the drafted token.
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  rejected: Bool[Array, '']
  deferred: Bool[Array, 'gamma']


def verify(
  method: methods.Method,
  lenience: Float[Array, ''],
  key: jax.Array,
  draft: Int[Array, 'gamma'],
  dists: methods.Distributions,
) -> Verdict:
  """Verifies a block, token by token.

  Args:
    method: What to keep and what to sample instead.
    lenience: Of the method.
    key: Used for this block only.
    draft: x_1..x_gamma, gamma >= 0.
    dists: Of positions 1..gamma + 1, each [gamma + 1, V]; `q` is what the
      draft was drawn from.

  Returns:
    The verdict.
  """
  gamma = draft.shape[0]
  chex.assert_shape(dists, (gamma + 1, None))
  keep_key, next_key = jax.random.split(key)
  drafted = jax.tree.map(lambda x: x[:gamma], dists)

  def of_draft(fn):
    """fn's value for each drafted token; [gamma]."""

    def one(d, x):
      return jnp.broadcast_to(fn(d, lenience), d.q.shape)[x]

    return jax.vmap(one)(drafted, draft)

  # u < 1 always: what is accepted with probability 1 never fails.
  uniform = jax.random.uniform(keep_key, (gamma,))
  kept = uniform < of_draft(method.acceptance)
  num_accepted = jnp.cumprod(kept.astype(jnp.int32)).sum()
  rejected = num_accepted < gamma

  # Only the one row that is sampled is made.
  row = jax.tree.map(lambda x: x[num_accepted], dists)
  after = jnp.where(
    rejected, method.residual(row, lenience), method.law(row, lenience)
  )
  if method.rule is None:
    deferred = jnp.zeros((gamma,), bool)
  else:
    deferred = of_draft(method.rule)
  return Verdict(
    num_accepted=num_accepted.astype(jnp.int32),
    next_token=sampling.sample(next_key, after),
    rejected=rejected,
    deferred=deferred,
  )
