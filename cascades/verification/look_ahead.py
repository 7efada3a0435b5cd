"""Look-ahead verification: judges a draft by the drafts after it too.

A rule that reads one position cannot tell a paraphrase from a mistake. Here a
draft that only the lenient method would accept is accepted if strict decoding
would accept the next W - 1 drafts. That is the deferred window of FLy (arXiv
2511.22972), not compared with its authors' code (unverified); its gate is the
method `undecided`. Strict decoding at temperature 0 requires equality with the
verifier's argmax.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cascades import methods
from cascades.verification import single_draft
from cascades.verification.inputs import Verdict, VerificationInputs


def _strict_acceptance(d: methods.Distributions, lenience: Array) -> Array:
  """Returns min(1, p / q), whatever the method."""
  del lenience
  return methods.ratio(d.p, d.q)


def look_ahead(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'gamma'],
  sample_uniforms: Float[Array, 'n'],
  window: int,
) -> Verdict:
  """Accepts tokens from the left, each by itself or by the tokens after it.

  With one uniform number u_i for each draft x_i,

    s_i = u_i < min(1, p_i(x_i) / q_i(x_i))
    l_i = u_i < acceptance_i(x_i)
    x_i is accepted if s_i, or if l_i and s_{i+1}, ..., s_{i+W-1},

  and all drafts before it are accepted; if a block has fewer than W - 1 drafts
  after x_i, only s_i counts. After a rejection a token is drawn from
  norm(max(0, p - q)). With s_i(x) and l_i(x) the two acceptance probabilities,
  and A(x) the probability that s holds for the W - 1 drafts after x,

    kept_i(x) = s_i(x) + max(0, l_i(x) - s_i(x)) A(x)
    law_i(x) = q_i(x) kept_i(x) + (1 - sum q_i kept_i) norm(max(0, p_i - q_i));

  after a draft that only l accepted, the next W - 1 tokens are the drafts. At
  the method's strict lenience the law is p. Otherwise the law depends on where
  blocks begin: a text has no single probability.
  """
  method, draft_length = inputs.method, inputs.draft_lengths[0]
  functions = _strict_acceptance, method.acceptance, method.rule
  strict, acceptance, deferred = single_draft.values_at_draft(
    inputs, functions, inputs.tokens[0]
  )
  in_draft = jnp.arange(inputs.gamma) < draft_length
  is_strict, is_lenient = (
    (accept_uniforms < x) & in_draft for x in (strict, acceptance)
  )

  def count_run(run_after, accepts):
    # Drafts in a row, from this one on, that are accepted strictly.
    return jnp.where(accepts, run_after + 1, 0), run_after

  zero = jnp.zeros((), jnp.int32)
  _, run_after = jax.lax.scan(count_run, zero, is_strict, reverse=True)
  accepts = is_strict | (is_lenient & (run_after >= window - 1))
  n = single_draft.count_leading(accepts)
  d, has_bonus_probs = inputs.distributions_at(n, 0), inputs.has_bonus_probs[0]
  law = method.law(d, inputs.lenience)
  verdict = single_draft.make_verdict(
    n,
    is_rejected=n < draft_length,
    residual=methods.normalize(jnp.maximum(0, d.p - d.q), d.p),
    bonus=inputs.bonus_distribution(d, law, has_bonus_probs),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
  )
  return single_draft.check_acceptance(verdict, acceptance, in_draft)
