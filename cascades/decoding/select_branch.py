"""Chooses between two computations without copying the models' caches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from cascades.decoding.propose import Proposal
from cascades.decoding.verify_block import BlockResult


def select_branch(
  condition: Bool[Array, ''],
  if_true: Callable[[Proposal], BlockResult],
  if_false: Callable[[Proposal], BlockResult],
  proposal: Proposal,
) -> BlockResult:
  """Returns if_true(proposal) or if_false(proposal).

  XLA gives the result of a `cond` another buffer than its operand, and copying
  all caches takes a large part of the time of a token. The carry of a loop
  keeps its buffer, so each branch is a loop of one iteration or none.
  """

  def split(result):
    return result.verifier_cache, result._replace(verifier_cache=None)

  shapes = jax.eval_shape(lambda x: split(if_true(x))[1], proposal)
  carry = (
    proposal.verifier_cache,
    jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
  )
  for is_selected, branch in (condition, if_true), (~condition, if_false):

    def run(carry, branch=branch):
      _, cache, _ = carry
      result = branch(proposal._replace(verifier_cache=cache))
      return jnp.zeros((), bool), *split(result)

    _, *carry = jax.lax.while_loop(lambda x: x[0], run, (is_selected, *carry))
  cache, result = carry
  return result._replace(verifier_cache=cache)
