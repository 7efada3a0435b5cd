"""Verifies a tree of drafts from its leaves: traversal verification.

Meant to be the published rule of arXiv 2505.12398; derived independently and
not compared with the authors' code (unverified). With pi the method's law, a
node of the tree has a budget r, the probability that the block passes through
it, and a target t, the distribution to follow there. At the root r = 1; when a
node is entered, t = pi. Its candidates x, the next tokens of the drafts that
begin with it, are examined one after the other:

  r_x = min(1, r t(x) / q(x)) is the budget of the node of x. If the block
  does not end there or further down,

    S = sum max(0, r t - q),  t <- max(0, r t - q) / S,  r <- S / (S + 1 - r).

When no candidate is left, the block ends at the node with probability r, and
the token after it is drawn from t; else it does not pass through the node.

If candidates are independent draws from q, the block passes through x with
probability min(q(x), r t(x)), whose sum is r - S. The rest of r t is max(0, r t
- q), and it is needed where the block did not pass through x, with probability
S + 1 - r: so budget and target hold again, and at the root the law is pi.
Whether the block passes through a node depends on the node's budget alone, not
on which other drafts begin with it; so those are still independent draws when
they are examined.

With one draft this is block verification. A step of `multi_round` examines each
candidate as if nothing followed; here a long path may be accepted although its
beginning alone would not have been.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.inputs import Verdict, VerificationInputs


class _Walk(NamedTuple):
  """The state of a walk over the tree of drafts."""

  depth: Int[Array, '']
  draft: Int[Array, '']
  is_examined: Bool[Array, 'K gamma']
  num_tests: Int[Array, '']
  is_done: Bool[Array, '']
  budgets: Float[Array, 'gamma_1']
  targets: Float[Array, 'gamma_1 V']
  first_drafts: Int[Array, 'gamma_1']
  is_valid: Bool[Array, '']


def _without_candidate(
  budget: Float[Array, ''], target: Float[Array, 'V'], q: Float[Array, 'V']
) -> tuple[Array, Array]:
  """Returns a node's budget and target after a candidate that was rejected."""
  rest = jnp.maximum(0, budget * target - q)
  mass = rest.sum()
  # In this order no rounding makes the divisor smaller than the mass.
  total = mass + jnp.where(budget < 1, 1 - budget, 0)
  next_budget = jnp.where(mass > 0, mass / jnp.where(mass > 0, total, 1), 0)
  return next_budget, methods.normalize(rest, target)


def _advance(
  inputs: VerificationInputs, accept_uniforms: Float[Array, 'n'], walk: _Walk
) -> _Walk:
  """Moves down to a candidate; without one, ends the block or moves up."""
  depth, draft = walk.depth, walk.draft
  d = inputs.distributions_at(depth, draft)
  at = jnp.minimum(depth, inputs.gamma - 1)
  is_shared = inputs.tokens == inputs.tokens[draft]
  is_below = jnp.cumprod(is_shared.astype(jnp.int32), 1).sum(1) >= depth
  in_draft = depth < inputs.draft_lengths
  is_candidate = is_below & ~walk.is_examined[:, at] & in_draft
  down = ~walk.is_done & is_candidate.any()
  candidate = jnp.argmax(is_candidate).astype(jnp.int32)
  x = inputs.tokens[candidate, at]
  budget, target = walk.budgets[depth], walk.targets[depth]
  # The root's budget is exactly 1, despite rounding.
  ends = (accept_uniforms[walk.num_tests] < budget) | (depth == 0)
  up = ~walk.is_done & ~down & ~ends
  above = jnp.maximum(depth - 1, 0)
  q = inputs.distributions_at(above, draft).q
  budget_above, target_above = _without_candidate(
    walk.budgets[above], walk.targets[above], q
  )
  d_below = inputs.distributions_at(at + 1, candidate)
  # After a whole draft q may be unknown, and the law is not used then.
  is_known = (at + 1 < inputs.draft_lengths) | inputs.has_bonus_probs
  law = inputs.method.law(d_below, inputs.lenience)
  law = jnp.where(is_known[candidate], law, d_below.p)
  budget_below = methods.ratio(budget * target[x], d.q[x])

  def select(if_down, if_up, if_stay):
    return jnp.where(down, if_down, jnp.where(up, if_up, if_stay))

  is_first = down & (walk.first_drafts[depth] < 0)
  first_drafts = walk.first_drafts.at[depth].set(
    jnp.where(is_first, candidate, walk.first_drafts[depth])
  )
  next_depth = select(depth + 1, above, depth)
  next_budget = select(budget_below, budget_above, budget)
  next_target = select(law, target_above, target)
  next_first = jnp.where(down, -1, first_drafts[next_depth])
  budgets = walk.budgets.at[next_depth].set(next_budget)
  targets = walk.targets.at[next_depth].set(next_target)
  first_drafts = first_drafts.at[next_depth].set(next_first)
  is_examined = walk.is_examined[candidate, at] | down
  return _Walk(
    depth=next_depth,
    budgets=budgets,
    targets=targets,
    first_drafts=first_drafts,
    draft=jnp.where(down, candidate, draft),
    is_examined=walk.is_examined.at[candidate, at].set(is_examined),
    num_tests=walk.num_tests + up,
    is_done=walk.is_done | (~down & ends),
    is_valid=walk.is_valid & (processing.has_mass(law) | ~down),
  )


def traversal(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'N'],
  sample_uniforms: Float[Array, 'n'],
) -> Verdict:
  """Accepts the first path, from the leaves upwards, that passes its test."""
  num_drafts, gamma = inputs.tokens.shape
  zero = jnp.zeros((), jnp.int32)
  d = inputs.distributions_at(zero, zero)
  law = inputs.method.law(d, inputs.lenience)
  targets = jnp.zeros((gamma + 1, inputs.vocab_size), law.dtype)
  start = _Walk(
    depth=zero,
    draft=zero,
    is_examined=jnp.zeros((num_drafts, gamma), bool),
    num_tests=zero,
    is_done=jnp.zeros((), bool),
    budgets=jnp.ones(gamma + 1, law.dtype),
    targets=targets.at[0].set(law),
    first_drafts=jnp.full(gamma + 1, -1, jnp.int32),
    is_valid=processing.has_mass(law) | (inputs.draft_lengths == 0).all(),
  )
  # Each token is entered once and left upwards once; then the block ends.
  end = jax.lax.fori_loop(
    0,
    2 * num_drafts * gamma + 1,
    lambda _, walk: _advance(inputs, accept_uniforms, walk),
    start,
  )
  n, draft = end.depth, end.draft
  is_rejected = end.first_drafts[n] >= 0
  # The draft that was rejected first begins with the accepted tokens.
  examined = jnp.where(is_rejected, end.first_drafts[n], draft)
  (deferred,) = single_draft.values_at_draft(
    inputs, [inputs.method.rule], examined
  )
  verdict = single_draft.make_verdict(
    inputs,
    n,
    is_rejected=is_rejected,
    residual=lambda *_: end.targets[n],
    sample_uniforms=sample_uniforms,
    deferred=jnp.where(jnp.arange(gamma) < n + is_rejected, deferred, 0),
    draft_index=draft,
    law=end.targets[n],
  )
  return verdict._replace(is_valid=verdict.is_valid & end.is_valid)
