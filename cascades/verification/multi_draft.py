"""Verifies one or several drafts per block, each with the same law.

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
               min(q, pi / c) / b; the rest of pi is drawn from
               norm(pi - min(q, pi / c) a / b). That is no less than 0 where
               c b >= a; c is the least such. Candidates as above.
               Sun et al., SpecTr, NeurIPS 2023, arXiv 2310.15141.
  match        Draw from pi; if a candidate is that token, it is accepted.
               Candidates need not be draws from q. At temperature 0 the longest
               accepted draft is kept.

Candidates of one step are independent of each other. Given that the prefix of a
draft was accepted, its later tokens are independent of the steps' outcomes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.inputs import Verdict, VerificationInputs

# Bisection steps over [1, m] in k_seq's search for c.
_HALVINGS = 24


class Step(NamedTuple):
  """The outcome of one step down the tree."""

  accepted: Bool[Array, '']
  token: Int[Array, '']
  residual: Float[Array, 'V']


def _step_multi_round(d, pi, candidates, is_candidate, uniforms) -> Step:
  """Examines one candidate after the other."""

  def examine(carry, xs):
    accepted, token, rho = carry
    x, is_valid, u = xs
    is_examined = is_valid & ~accepted
    # u q < rho, and no quotient.
    accepts = is_examined & (u * d.q[x] < rho[x])
    less = methods.normalize(jnp.maximum(0, rho - d.q), rho)
    rho = jnp.where(is_examined & ~accepts, less, rho)
    return (accepted | accepts, jnp.where(accepts, x, token), rho), None

  start = jnp.zeros((), bool), jnp.zeros((), jnp.int32), pi
  end, _ = jax.lax.scan(examine, start, (candidates, is_candidate, uniforms))
  return Step(*end)


def _step_k_seq(d, pi, candidates, is_candidate, uniforms) -> Step:
  """Examines all candidates against the target divided by one number."""
  m = is_candidate.sum().astype(pi.dtype)

  def acceptance(c):
    """Returns the acceptance probability of one candidate, and of any."""
    b = jnp.minimum(d.q, pi / c).sum()
    return b, 1 - (1 - b) ** m

  def halve(_, ends):
    low, high = ends
    center = (low + high) / 2
    b, a = acceptance(center)
    enough = center * b >= a
    return jnp.where(enough, low, center), jnp.where(enough, center, high)

  c_min = jnp.ones((), pi.dtype)
  # At c = m it holds: 1 - (1 - b)^m <= m b. If c = 1 suffices, it is exact.
  b, a = acceptance(c_min)
  _, c = jax.lax.fori_loop(0, _HALVINGS, halve, (c_min, jnp.maximum(m, 1)))
  c = jnp.where(b >= a, c_min, c)
  b, a = acceptance(c)
  share = jnp.minimum(d.q, pi / c)
  rest = jnp.maximum(0, pi - share * jnp.where(b > 0, a / b, 1))
  accepts = is_candidate & (uniforms * c * d.q[candidates] < pi[candidates])
  first = jnp.argmax(accepts)
  return Step(accepts.any(), candidates[first], methods.normalize(rest, pi))


def _step_match(d, pi, candidates, is_candidate, uniforms) -> Step:
  """Draws a token from the target, and accepts it if it is a candidate."""
  del d
  token = processing.sample_from_uniforms(uniforms, pi)
  accepts = is_candidate & (candidates == token)
  one_hot = jnp.arange(pi.shape[-1]) == token
  return Step(accepts.any(), token, one_hot.astype(pi.dtype))


class _Walk(NamedTuple):
  """The state of a walk down the tree of drafts."""

  is_alive: Bool[Array, 'K']
  draft: Int[Array, '']
  num_accepted: Int[Array, '']
  residual: Float[Array, 'V']
  is_active: Bool[Array, '']
  is_valid: Bool[Array, '']


# By the name of the verification.
STEPS: dict[str, Callable[..., Step]] = {
  'multi_round': _step_multi_round,
  'k_seq': _step_k_seq,
  'match': _step_match,
}


def walk(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'N'],
  sample_uniforms: Float[Array, 'n'],
) -> Verdict:
  """Walks down the tree of drafts as long as steps accept a candidate."""
  step = STEPS[inputs.config.verification]

  def descend(walk, xs):
    i, uniforms = xs
    n, draft = walk.num_accepted, walk.draft
    is_candidate = walk.is_alive & (i < inputs.draft_lengths)
    d = inputs.distributions_at(n, draft)
    pi = inputs.method.law(d, inputs.lenience)
    result = step(d, pi, inputs.tokens[:, i], is_candidate, uniforms=uniforms)
    is_examined = walk.is_active & is_candidate.any()
    accepted = is_examined & result.accepted
    agrees = is_candidate & (inputs.tokens[:, i] == result.token)
    # The rule is evaluated at the accepted token, or at the first candidate.
    examined = jnp.argmax(jnp.where(accepted, agrees, is_candidate))
    deferred = single_draft.value_at_token(
      inputs.method.rule, d, inputs.lenience, inputs.tokens[examined, i]
    )
    walk = _Walk(
      is_alive=jnp.where(accepted, agrees, walk.is_alive),
      draft=jnp.where(accepted, examined, draft).astype(jnp.int32),
      num_accepted=n + accepted,
      residual=jnp.where(
        is_examined & ~accepted, result.residual, walk.residual
      ),
      is_active=accepted,
      # `match` draws an accepted token from the target, too.
      is_valid=walk.is_valid & (processing.has_mass(pi) | ~is_examined),
    )
    return walk, (deferred > 0, is_examined & ~accepted)

  zero = jnp.zeros((), jnp.int32)
  start = _Walk(
    is_alive=jnp.ones(len(inputs.tokens), bool),
    draft=zero,
    num_accepted=zero,
    residual=jnp.zeros(inputs.vocab_size, inputs.probs_shape.dtype),
    is_active=jnp.ones((), bool),
    is_valid=jnp.ones((), bool),
  )
  xs = jnp.arange(inputs.gamma), accept_uniforms.reshape(inputs.gamma, -1)
  end, (deferred, rejected) = jax.lax.scan(descend, start, xs)
  verdict = single_draft.make_verdict(
    inputs,
    end.num_accepted,
    is_rejected=rejected.any(),
    residual=lambda *_: end.residual,
    sample_uniforms=sample_uniforms,
    deferred=deferred,
    draft_index=end.draft,
  )
  return verdict._replace(is_valid=verdict.is_valid & end.is_valid)
