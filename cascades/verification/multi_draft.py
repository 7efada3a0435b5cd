"""Several drafts per block, each verification with the same law.

The drafts of a block make a tree: drafts that begin with the same tokens share
a prefix. Verification walks down from its root. At each step the candidates
are the next tokens of the drafts that begin with what was accepted so far; a
step accepts one of them, or ends the block with a token of its own. A step's
law, given its prefix, is the method's, so the block's is:

  multi_round  For one candidate x after the other, with rho = pi at first,
               accept x with min(1, rho(x) / q(x)), else
               rho <- norm(max(0, rho - q)). After the last, draw from rho.
               Candidates must be independent draws from q.
               Miao et al., SpecInfer, arXiv 2305.09781.
  k_seq        For m candidates and a number c >= 1, accept x with
               min(1, pi(x) / (c q(x))). With b = sum min(q, pi / c), a token
               is accepted with a = 1 - (1 - b)^m, distributed as
               min(q, pi / c) / b; what is left of pi is drawn from
               norm(pi - min(q, pi / c) a / b). That is no less than 0 where
               c b >= a; c is the least such. Candidates as above.
               Sun et al., SpecTr, NeurIPS 2023, arXiv 2310.15141.
  match        Draw from pi; if a candidate is that token, it is accepted.
               Candidates may come from anywhere. At temperature 0 the longest
               accepted draft stays.

Candidates of one step know nothing of each other, and a draft's later tokens
nothing of a step's outcome, but that its prefix was accepted.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.verdict import Verdict

# Halvings of [1, m] in the search of k_seq's number.
_HALVINGS = 24


class Step(NamedTuple):
  """What one step down the tree says.

  Attributes:
    accepted: Whether a candidate is.
    token: Which; anything if none is.
    instead: What to draw from if none is.
  """

  accepted: Bool[Array, '']
  token: Int[Array, '']
  instead: Float[Array, 'V']


def _rounds(d, pi, candidates, there, uniforms) -> Step:
  """One candidate after the other."""

  def one(carry, inputs):
    accepted, token, rho = carry
    x, is_there, u = inputs
    tried = is_there & ~accepted
    # u q < rho, and no quotient.
    yes = tried & (u * d.q[x] < rho[x])
    less = methods.normalize(jnp.maximum(0, rho - d.q), rho)
    rho = jnp.where(tried & ~yes, less, rho)
    return (accepted | yes, jnp.where(yes, x, token), rho), None

  start = jnp.zeros((), bool), jnp.zeros((), jnp.int32), pi
  last, _ = jax.lax.scan(one, start, (candidates, there, uniforms))
  return Step(*last)


def _divided(d, pi, candidates, there, uniforms) -> Step:
  """All candidates against the target divided by one number."""
  m = there.sum().astype(pi.dtype)

  def accepts(c):
    """The chance of one candidate, and of any."""
    b = jnp.minimum(d.q, pi / c).sum()
    return b, 1 - (1 - b) ** m

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    b, a = accepts(middle)
    enough = middle * b >= a
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  one = jnp.ones((), pi.dtype)
  # At c = m it holds: 1 - (1 - b)^m <= m b. Where 1 will do, it is exact.
  b, a = accepts(one)
  _, c = jax.lax.fori_loop(0, _HALVINGS, halve, (one, jnp.maximum(m, 1)))
  c = jnp.where(b >= a, one, c)
  b, a = accepts(c)
  share = jnp.minimum(d.q, pi / c)
  left = jnp.maximum(0, pi - share * jnp.where(b > 0, a / b, 1))
  yes = there & (uniforms * c * d.q[candidates] < pi[candidates])
  first = jnp.argmax(yes)
  return Step(yes.any(), candidates[first], methods.normalize(left, pi))


def _drawn(d, pi, candidates, there, uniforms) -> Step:
  """The target's own token, if it is a candidate."""
  del d
  token = processing.sample_from_uniforms(uniforms, pi)
  yes = there & (candidates == token)
  alone = jnp.arange(pi.shape[-1]) == token
  return Step(yes.any(), token, alone.astype(pi.dtype))


def _walk(
  ask: single_draft.Question,
  chances: Float[Array, 'N'],
  last: Float[Array, 'n'],
  step: Callable[..., Step],
) -> Verdict:
  """Down the tree, as far as steps accept; each has its part of the numbers."""
  paths, gamma = ask.tokens.shape

  def down(carry, inputs):
    active, path, kept, instead, going, is_valid = carry
    i, numbers = inputs
    there = active & (i < ask.count)
    d = ask.row(kept, path)
    lenience = ask.leniences[path, kept]
    pi = ask.method.law(d, lenience)
    found = step(d, pi, ask.tokens[:, i], there, numbers)
    tried = going & there.any()
    accepted = tried & found.accepted
    agree = there & (ask.tokens[:, i] == found.token)
    # Judged by the token that is kept, or by that of the first candidate.
    shown = jnp.argmax(jnp.where(accepted, agree, there))
    deferred = single_draft.of_token(
      ask.method.rule, d, lenience, ask.tokens[shown, i]
    )
    carry = (
      jnp.where(accepted, agree, active),
      jnp.where(accepted, shown, path).astype(jnp.int32),
      kept + accepted,
      jnp.where(tried & ~accepted, found.instead, instead),
      accepted,
      # A match is drawn from the target, whatever the token after it is.
      is_valid & (processing.has_mass(pi) | ~tried),
    )
    return carry, (deferred > 0, tried & ~accepted)

  zero = jnp.zeros((), jnp.int32)
  dtype = jax.eval_shape(ask.row, zero, zero).q.dtype
  start = (
    jnp.ones(paths, bool),
    zero,
    zero,
    jnp.zeros(ask.size, dtype),
    jnp.ones((), bool),
    jnp.ones((), bool),
  )
  (_, path, kept, instead, _, is_valid), (deferred, rejected) = jax.lax.scan(
    down, start, (jnp.arange(gamma), chances.reshape(gamma, -1))
  )
  rejected = rejected.any()
  d = ask.row(kept, path)
  law = ask.method.law(d, ask.leniences[path, kept])
  beyond = ask.beyond(d, law, ask.known[path])
  found = single_draft.verdict(
    kept, rejected, instead, beyond, last, deferred, path
  )
  return found._replace(is_valid=found.is_valid & is_valid)


def multi_round(
  ask: single_draft.Question,
  chances: Float[Array, 'N'],
  last: Float[Array, 'n'],
) -> Verdict:
  """One candidate after the other; see the module."""
  return _walk(ask, chances, last, _rounds)


def k_seq(
  ask: single_draft.Question,
  chances: Float[Array, 'N'],
  last: Float[Array, 'n'],
) -> Verdict:
  """All candidates against the divided target; see the module."""
  return _walk(ask, chances, last, _divided)


def match(
  ask: single_draft.Question,
  chances: Float[Array, 'N'],
  last: Float[Array, 'n'],
) -> Verdict:
  """The target's own tokens along the drafts; see the module."""
  return _walk(ask, chances, last, _drawn)
