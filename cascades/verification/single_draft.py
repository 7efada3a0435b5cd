"""Verifies one draft per block: by token, as a block, or looking ahead.

`token`, `block` and `look_ahead` take `VerificationInputs`, uniform numbers for
acceptance, and uniform numbers for the token after the accepted ones.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification.inputs import Verdict, VerificationInputs
from cascades.verification_config import BONUS, RESIDUAL

# Probabilities of one sequence that are evaluated at a time; at least those of
# one position. Small vocabularies share a batch: a loop is slower on a CPU.
MAX_PROBS_AT_ONCE = 2**15


def value_at_token(
  function, d: methods.Distributions, lenience, token: Int[Array, '']
) -> Array:
  """Evaluates a method's function at one token; 0 if the function is None."""
  if function is None:
    return jnp.zeros((), d.q.dtype)
  return jnp.broadcast_to(function(d, lenience), d.q.shape)[token]


def values_at_draft(
  inputs: VerificationInputs,
  functions: Sequence,
  draft: Int[Array, ''] | int = 0,
) -> list[Array]:
  """Evaluates a method's functions at drafted tokens; returns [gamma] each."""
  gamma, tokens = inputs.gamma, inputs.tokens[draft]

  def evaluate(i):
    # Indexed in place: a slice of all positions would be a copy of them.
    d, x = inputs.distributions_at(i, draft), tokens[i]
    return [value_at_token(fn, d, inputs.lenience, x) for fn in functions]

  batch_size = min(gamma, max(1, MAX_PROBS_AT_ONCE // inputs.vocab_size))
  return jax.lax.map(evaluate, jnp.arange(gamma), batch_size=batch_size)


def count_leading(values: Bool[Array, 'n']) -> Int[Array, '']:
  """Counts the True values before the first False."""
  return jnp.cumprod(values.astype(jnp.int32)).sum().astype(jnp.int32)


def bonus_only(
  inputs: VerificationInputs, sample_uniforms: Float[Array, 'n']
) -> Verdict:
  """Samples the token after an empty draft."""
  zero = jnp.zeros((), jnp.int32)
  d = inputs.distributions_at(zero, zero)
  law = inputs.method.law(d, inputs.lenience)
  bonus = inputs.bonus_distribution(d, law, inputs.has_bonus_probs[0])
  verdict = make_verdict(
    zero,
    is_rejected=jnp.zeros((), bool),
    residual=bonus,
    bonus=bonus,
    sample_uniforms=sample_uniforms,
    deferred=jnp.zeros(inputs.gamma),
    bonus_deferred=_defers_at_bonus(inputs, d, zero),
  )
  nothing = [jnp.zeros(inputs.gamma)] * len(inputs.reported)
  return report(inputs, verdict, d, law, nothing)


def report(
  inputs: VerificationInputs,
  verdict: Verdict,
  d: methods.Distributions,
  law: Float[Array, 'V'],
  draft_probs: Sequence[Array] | None = None,
) -> Verdict:
  """Adds the requested probabilities of the emitted tokens to a verdict.

  `d` and `law` are those of the next token; `draft_probs` the values of
  `inputs.reported` at the drafts, computed here if None.
  """
  if not inputs.with_probs:
    return verdict
  draft, token = verdict.draft_index, verdict.next_token
  if draft_probs is None:
    draft_probs = values_at_draft(inputs, inputs.reported, draft)
  bonus = inputs.bonus_distribution(d, law, inputs.has_bonus_probs[draft])
  pi = jnp.where(verdict.next_source == BONUS, bonus, law)
  is_next = jnp.arange(inputs.gamma + 1) == verdict.num_accepted
  probs = [
    jnp.where(is_next, x[token], jnp.append(y, 0))
    for x, y in zip((d.q, d.p, pi), draft_probs, strict=True)
  ]
  return verdict._replace(probs=jnp.stack(probs, -1))


def _defers_at_bonus(
  inputs: VerificationInputs, d: methods.Distributions, n: Int[Array, '']
) -> Bool[Array, ''] | bool:
  """Returns True if a rule about the whole position defers at the bonus.

  Also True if q is unknown there, since the verifier then decides. False for
  rules about single tokens, and for verifications other than `token`.
  """
  rule, is_token = inputs.method.rule, inputs.config.verification == 'token'
  if rule is None or not (is_token and inputs.bonus_from_target):
    return False
  defers = rule(d, inputs.lenience)
  if jnp.ndim(defers):
    return False
  return ~inputs.has_bonus_probs[0] | (defers > 0)


def token(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'gamma'],
  sample_uniforms: Float[Array, 'n'],
) -> Verdict:
  """Accepts tokens from the left, each with its own acceptance probability.

  Draft x_i is accepted if accept_uniforms[i] < a_i(x_i), with a_i the method's
  acceptance, and the drafts before it are accepted. In place of the first draft
  that is not, a token is drawn from the method's residual.
  """
  method, draft_length = inputs.method, inputs.draft_lengths[0]
  # In one pass with what is reported: the law decides the acceptance.
  acceptance, deferred, *probs = values_at_draft(
    inputs, (method.acceptance, method.rule, *inputs.reported)
  )
  # u < 1 always: a draft with acceptance 1 is never rejected.
  in_draft = jnp.arange(inputs.gamma) < draft_length
  n = count_leading((accept_uniforms < acceptance) & in_draft)
  # Only the position that is sampled is evaluated.
  d = inputs.distributions_at(n, 0)
  residual = method.residual(d, inputs.lenience)
  law = method.law(d, inputs.lenience)
  verdict = make_verdict(
    n,
    is_rejected=n < draft_length,
    residual=residual,
    bonus=inputs.bonus_distribution(d, law, inputs.has_bonus_probs[0]),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
    bonus_deferred=_defers_at_bonus(inputs, d, n),
  )._replace(accept_uniforms=jnp.append(accept_uniforms, jnp.nan))
  verdict = report(inputs, verdict, d, law, probs)
  return check_acceptance(check_law(verdict, law), acceptance, in_draft)


def check_acceptance(
  verdict: Verdict,
  acceptance: Float[Array, 'gamma'],
  in_draft: Bool[Array, 'gamma'],
) -> Verdict:
  """Marks a verdict as invalid if an examined draft's acceptance is nan.

  A comparison with nan is False, which looks like a rejection.
  """
  index = jnp.arange(len(acceptance))
  examined = in_draft & (index <= verdict.num_accepted)
  is_number = (jnp.isfinite(acceptance) | ~examined).all()
  return verdict._replace(is_valid=verdict.is_valid & is_number)


def check_law(verdict: Verdict, law: Float[Array, 'V']) -> Verdict:
  """Marks a verdict as invalid if its residual's law is no distribution.

  A residual is clipped at 0, which hides a law with negative values.
  """
  is_residual = verdict.next_source == RESIDUAL
  is_valid = processing.has_mass(law) | ~is_residual
  return verdict._replace(is_valid=verdict.is_valid & is_valid)


def block(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'gamma'],
  sample_uniforms: Float[Array, 'n'],
) -> Verdict:
  """Accepts the longest prefix that block verification allows.

  With w_0 = 1 and pi_i, q_i the distributions of draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma,

  the longest prefix i with u_i < h_i is accepted, and the residual after it is
  norm(max(0, w_i pi_{i+1} - q_{i+1})). A draft that ended early is a draft of a
  smaller gamma. Enumeration proves that the law is kept; not compared with the
  authors' code (unverified).
  """
  gamma, draft_length = inputs.gamma, inputs.draft_lengths[0]
  method = inputs.method

  def weigh(w, i):
    d, x = inputs.distributions_at(i, 0), inputs.tokens[0, i]
    pi = method.law(d, inputs.lenience)
    mass = jnp.maximum(0, w * pi - d.q).sum()
    next_w = methods.ratio(w * pi[x], d.q[x])
    deferred = value_at_token(method.rule, d, inputs.lenience, x)
    return next_w.astype(w.dtype), (w, mass, deferred)

  w_start = jnp.ones((), inputs.probs_shape.dtype)
  w_gamma, (w, mass, deferred) = jax.lax.scan(weigh, w_start, jnp.arange(gamma))
  # In this order no rounding makes the divisor smaller than the mass. At w = 1
  # and no mass the next draft is accepted for certain: h is arbitrary.
  h = jnp.where(w < 1, mass / (mass + jnp.where(w < 1, 1 - w, 1)), 1)
  w = jnp.append(w, w_gamma)
  # The prefixes are i = 1..gamma; i = 0 needs no test.
  index = jnp.arange(1, gamma + 1)
  h = jnp.where(index == draft_length, w[1:], jnp.append(h[1:], 0.0)[:gamma])
  passes = (accept_uniforms < h) & (index <= draft_length)
  n = jnp.where(passes, index, 0).max(initial=0).astype(jnp.int32)
  d = inputs.distributions_at(n, 0)
  law = method.law(d, inputs.lenience)
  verdict = make_verdict(
    n,
    is_rejected=n < draft_length,
    residual=methods.normalize(jnp.maximum(0, w[n] * law - d.q), law),
    bonus=inputs.bonus_distribution(d, law, inputs.has_bonus_probs[0]),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
  )
  return check_law(report(inputs, verdict, d, law), law)


def look_ahead(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'gamma'],
  sample_uniforms: Float[Array, 'n'],
  window: int,
) -> Verdict:
  """Accepts tokens from the left, each by itself or by the tokens after it.

  A rule that reads one position cannot tell a paraphrase from a mistake. This
  is the deferred window of FLy (arXiv 2511.22972), not compared with its
  authors' code (unverified); its gate is the method `undecided`. Strict
  decoding at temperature 0 requires equality with the verifier's argmax.

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
  strict, acceptance, deferred = values_at_draft(
    inputs,
    (lambda d, _: methods.ratio(d.p, d.q), method.acceptance, method.rule),
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
  n = count_leading(accepts)
  d, has_bonus_probs = inputs.distributions_at(n, 0), inputs.has_bonus_probs[0]
  law = method.law(d, inputs.lenience)
  verdict = make_verdict(
    n,
    is_rejected=n < draft_length,
    residual=methods.normalize(jnp.maximum(0, d.p - d.q), d.p),
    bonus=inputs.bonus_distribution(d, law, has_bonus_probs),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
  )
  verdict = report(inputs, verdict, d, law)
  return check_acceptance(verdict, acceptance, in_draft)


def make_verdict(
  num_accepted: Int[Array, ''],
  *,
  is_rejected: Bool[Array, ''],
  residual: Float[Array, 'V'],
  bonus: Float[Array, 'V'],
  sample_uniforms: Float[Array, 'n'],
  deferred: Array,
  bonus_deferred: Bool[Array, ''] | bool = False,
  draft_index: Int[Array, ''] | int = 0,
) -> Verdict:
  """Samples the token after the accepted ones, and returns the verdict."""
  weights = jnp.where(is_rejected, residual, bonus)
  deferred = jnp.append(deferred > 0, False)
  is_bonus = (jnp.arange(len(deferred)) == num_accepted) & ~is_rejected
  return Verdict(
    num_accepted=num_accepted,
    next_token=processing.sample_from_uniforms(sample_uniforms, weights),
    next_source=jnp.where(is_rejected, RESIDUAL, BONUS),
    deferred=jnp.where(is_bonus, bonus_deferred, deferred),
    draft_index=jnp.asarray(draft_index, jnp.int32),
    is_valid=processing.has_mass(weights),
  )
