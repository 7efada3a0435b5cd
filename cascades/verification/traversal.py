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

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades import methods
from cascades.methods import processing
from cascades.scheme import BONUS, RESIDUAL
from cascades.verification import single
from cascades.verification.verdict import Verdict


def _alike(
  tokens: Int[Array, 'K gamma'], path: Int[Array, '']
) -> Int[Array, 'K']:
  """How many tokens each draft has in common with one of them."""
  same = jnp.cumprod((tokens == tokens[path]).astype(jnp.int32), 1)
  return same.sum(1)


def traversal(ask: single.Question, key: jax.Array) -> Verdict:
  """Down to a leaf, and up again as far as nothing stays; see the module."""
  paths, gamma = ask.tokens.shape
  draw = processing.draw_size(ask.size)
  uniforms = processing.uniform(key, paths * gamma + draw)
  method, lenience = ask.method, ask.lenience
  zero = jnp.zeros((), jnp.int32)
  law = method.law(ask.row(zero, zero), lenience)

  def turn(_, carry):
    depth, path, tried, tests, done, budgets, targets, firsts = carry
    d, at = ask.row(depth, path), jnp.minimum(depth, gamma - 1)
    here = _alike(ask.tokens, path) >= depth
    free = here & ~tried[:, at] & (depth < ask.count)
    down = ~done & free.any()
    draft = jnp.argmax(free).astype(jnp.int32)
    x = ask.tokens[draft, at]
    budget, target = budgets[depth], targets[depth]
    budget_of_x = methods.ratio(budget * target[x], d.q[x])
    target_of_x = method.law(ask.row(at + 1, draft), lenience)

    # The root's budget is 1, whatever rounding makes of it.
    ends = (uniforms[tests] < budget) | (depth == 0)
    up = ~done & ~down & ~ends
    above = jnp.maximum(depth - 1, 0)
    before, q = budgets[above], ask.row(above, path).q
    left = jnp.maximum(0, before * targets[above] - q)
    mass = left.sum()
    # In this order no rounding makes the divisor smaller than the mass.
    whole = mass + jnp.where(before < 1, 1 - before, 0)
    rest = jnp.where(mass > 0, mass / jnp.where(mass > 0, whole, 1), 0)

    level = jnp.where(down, depth + 1, jnp.where(up, above, depth))
    budgets = budgets.at[level].set(
      jnp.where(down, budget_of_x, jnp.where(up, rest, budgets[level]))
    )
    removed = methods.normalised(left, targets[above])
    targets = targets.at[level].set(
      jnp.where(down, target_of_x, jnp.where(up, removed, targets[level]))
    )
    # -1 where nothing was tried yet.
    first = jnp.where(down & (firsts[depth] < 0), draft, firsts[depth])
    firsts = firsts.at[depth].set(first)
    firsts = firsts.at[level].set(jnp.where(down, -1, firsts[level]))
    return (
      level,
      jnp.where(down, draft, path),
      tried.at[draft, at].set(tried[draft, at] | down),
      tests + up,
      done | (~down & ends),
      budgets,
      targets,
      firsts,
    )

  start = (
    zero,
    zero,
    jnp.zeros((paths, gamma), bool),
    zero,
    jnp.zeros((), bool),
    jnp.ones(gamma + 1, law.dtype),
    jnp.zeros((gamma + 1, ask.size), law.dtype).at[0].set(law),
    jnp.full(gamma + 1, -1, jnp.int32),
  )
  # Each token is gone down to once, and up from once; then the block ends.
  kept, path, _, _, _, _, targets, firsts = jax.lax.fori_loop(
    0, 2 * paths * gamma + 1, turn, start
  )
  rejected = firsts[kept] >= 0
  d = ask.row(kept, path)
  known = ask.known[path] | (kept < ask.count[path])
  beyond = ask.beyond(d, targets[kept], known)
  weights = jnp.where(rejected, targets[kept], beyond)
  return Verdict(
    num_accepted=kept,
    next_token=processing.draw(uniforms[paths * gamma :], weights),
    next_source=jnp.where(rejected, RESIDUAL, BONUS),
    deferred=_deferred(ask, kept, path, firsts[kept]),
    path=path,
  )


def _deferred(
  ask: single.Question,
  kept: Int[Array, ''],
  path: Int[Array, ''],
  first: Int[Array, ''],
) -> Bool[Array, 'gamma_1']:
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
    said = single.of_token(ask.method.rule, d, ask.lenience, x)
    return there & (said > 0)

  if not ask.gamma:
    return jnp.zeros(1, bool)
  return jnp.append(jax.lax.map(one, jnp.arange(ask.gamma)), False)
