"""A tree of drafts from its leaves: the longest path that may stay does.

Traversal verification, arXiv 2505.12398, whose published rule this is meant to
be; it was derived here and not compared with its authors' code. With pi the
method's law, a node of the tree has a budget r, the chance that the block goes
through it, and a target t, what is to follow it there. At the root r = 1; where
a node is come to, t = pi. Its candidates x, the next tokens of the drafts that
begin with it, are tried one after the other:

  r_x = min(1, r t(x) / q(x)) is the budget of the node of x. If the block
  does not end there or further down,

    S = sum max(0, r t - q),  t <- max(0, r t - q) / S,  r <- S / (S + 1 - r).

When none is left, the block ends at the node with chance r, and the token after
it is drawn from t; else it does not go through the node.

Of candidates that are independent draws from q, x is one and is gone through
with min(q(x), r t(x)), whose sum is r - S. What is missing of r t is max(0, r t
- q), and it is asked for where the block did not go through x, with S + 1 - r:
so budget and target hold again, and at the root the law is pi. Whether a node
is gone through hangs on its own budget alone, and not on which other drafts
begin with it; so those are still independent draws when they are tried.

With one draft this is block verification. A step of `multi_round` asks each
candidate whether it may stay as if nothing followed; here a path that is long
may stay though its beginning would not have.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.verdict import Verdict


def _alike(
  tokens: Int[Array, 'K gamma'], path: Int[Array, '']
) -> Int[Array, 'K']:
  """How many tokens each draft has in common with one of them."""
  same = jnp.cumprod((tokens == tokens[path]).astype(jnp.int32), 1)
  return same.sum(1)


class _Walk(NamedTuple):
  """Where the walk is, and what is known of the nodes above it.

  Attributes:
    depth: Of the node.
    path: A draft that begins with its tokens.
    tried: Which tokens of the drafts were.
    tests: Nodes that were left upwards; each has a random number.
    done: Whether the block has ended at the node.
    budgets: r of the nodes along the path.
    targets: t of them.
    firsts: The draft whose token was tried first there; -1 for none.
    is_valid: Whether the laws of all nodes so far are distributions.
  """

  depth: Int[Array, '']
  path: Int[Array, '']
  tried: Bool[Array, 'K gamma']
  tests: Int[Array, '']
  done: Bool[Array, '']
  budgets: Float[Array, 'gamma_1']
  targets: Float[Array, 'gamma_1 V']
  firsts: Int[Array, 'gamma_1']
  is_valid: Bool[Array, '']

  def at(
    self,
    level: Int[Array, ''],
    budget: Float[Array, ''],
    target: Float[Array, 'V'],
    first: Int[Array, ''],
  ) -> '_Walk':
    """The walk at a level, with what is known of the node there."""
    return self._replace(
      depth=level,
      budgets=self.budgets.at[level].set(budget),
      targets=self.targets.at[level].set(target),
      firsts=self.firsts.at[level].set(first),
    )


def _without(
  budget: Float[Array, ''], target: Float[Array, 'V'], q: Float[Array, 'V']
) -> tuple[Array, Array]:
  """A node's budget and target after a candidate that it did not go through."""
  left = jnp.maximum(0, budget * target - q)
  mass = left.sum()
  # In this order no rounding makes the divisor smaller than the mass.
  whole = mass + jnp.where(budget < 1, 1 - budget, 0)
  rest = jnp.where(mass > 0, mass / jnp.where(mass > 0, whole, 1), 0)
  return rest, methods.normalize(left, target)


def _turn(
  ask: single_draft.Question, chances: Float[Array, 'n'], walk: _Walk
) -> _Walk:
  """Down to a candidate; where none is left, the end of the block, or up."""
  depth, path = walk.depth, walk.path
  d, at = ask.row(depth, path), jnp.minimum(depth, ask.gamma - 1)
  here = _alike(ask.tokens, path) >= depth
  free = here & ~walk.tried[:, at] & (depth < ask.count)
  down = ~walk.done & free.any()
  draft = jnp.argmax(free).astype(jnp.int32)
  x = ask.tokens[draft, at]
  budget, target = walk.budgets[depth], walk.targets[depth]
  # The root's budget is 1, whatever rounding makes of it.
  ends = (chances[walk.tests] < budget) | (depth == 0)
  up = ~walk.done & ~down & ~ends
  above = jnp.maximum(depth - 1, 0)
  q = ask.row(above, path).q
  rest, left = _without(walk.budgets[above], walk.targets[above], q)
  further = ask.leniences[draft, at + 1]
  law = ask.method.law(ask.row(at + 1, draft), further)
  share = methods.ratio(budget * target[x], d.q[x])

  def chosen(of_down, of_up, of_stay):
    return jnp.where(down, of_down, jnp.where(up, of_up, of_stay))

  first = walk.firsts.at[depth].set(
    jnp.where(down & (walk.firsts[depth] < 0), draft, walk.firsts[depth])
  )
  level = chosen(depth + 1, above, depth)
  walk = walk._replace(firsts=first).at(
    level,
    chosen(share, rest, budget),
    chosen(law, left, target),
    jnp.where(down, -1, first[level]),
  )
  return walk._replace(
    path=jnp.where(down, draft, path),
    tried=walk.tried.at[draft, at].set(walk.tried[draft, at] | down),
    tests=walk.tests + up,
    done=walk.done | (~down & ends),
    is_valid=walk.is_valid & (processing.has_mass(law) | ~down),
  )


def traversal(
  ask: single_draft.Question,
  chances: Float[Array, 'N'],
  last: Float[Array, 'n'],
) -> Verdict:
  """Down to a leaf, and up again as far as nothing stays; see the module."""
  paths, gamma = ask.tokens.shape
  zero = jnp.zeros((), jnp.int32)
  law = ask.method.law(ask.row(zero, zero), ask.leniences[0, 0])
  start = _Walk(
    depth=zero,
    path=zero,
    tried=jnp.zeros((paths, gamma), bool),
    tests=zero,
    done=jnp.zeros((), bool),
    budgets=jnp.ones(gamma + 1, law.dtype),
    targets=jnp.zeros((gamma + 1, ask.size), law.dtype).at[0].set(law),
    firsts=jnp.full(gamma + 1, -1, jnp.int32),
    is_valid=processing.has_mass(law) | (ask.count == 0).all(),
  )
  # Each token is gone down to once, and up from once; then the block ends.
  end = jax.lax.fori_loop(
    0,
    2 * paths * gamma + 1,
    lambda _, walk: _turn(ask, chances, walk),
    start,
  )
  kept, path = end.depth, end.path
  rejected = end.firsts[kept] >= 0
  d = ask.row(kept, path)
  known = ask.known[path] | (kept < ask.count[path])
  beyond = ask.beyond(d, end.targets[kept], known)
  deferred = _deferred(ask, kept, path, end.firsts[kept])
  found = single_draft.verdict(
    kept, rejected, end.targets[kept], beyond, last, deferred, path
  )
  return found._replace(is_valid=found.is_valid & end.is_valid)


def _deferred(
  ask: single_draft.Question,
  kept: Int[Array, ''],
  path: Int[Array, ''],
  first: Int[Array, ''],
) -> Bool[Array, 'gamma']:
  """Where the rule defers: of tokens that stay, and of the first that did not.

  Args:
    ask: What was asked.
    kept: Tokens that stay.
    path: The draft that they are of.
    first: The draft whose token was tried first after them; -1 for none.
  """

  def one(i):
    there = (i < kept) | ((i == kept) & (first >= 0))
    x = ask.tokens[jnp.where(i < kept, path, jnp.maximum(first, 0)), i]
    d = ask.row(i, path)
    lenience = ask.leniences[path, i]
    said = single_draft.of_token(ask.method.rule, d, lenience, x)
    return there & (said > 0)

  return jax.lax.map(one, jnp.arange(ask.gamma))
