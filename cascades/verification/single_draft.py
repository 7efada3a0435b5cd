"""Verifies one draft per block: by token, as a block, or looking ahead.

`token`, `block` and `look_ahead` take `VerificationInputs`, uniform numbers for
acceptance, and uniform numbers for the token after the accepted ones.
"""

from collections.abc import Callable, Sequence

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
  draft_probs = jnp.zeros((inputs.gamma, 3)) if inputs.with_probs else None
  return make_verdict(
    inputs,
    jnp.zeros((), jnp.int32),
    is_rejected=jnp.zeros((), bool),
    residual=lambda d, law: law,
    sample_uniforms=sample_uniforms,
    deferred=jnp.zeros(inputs.gamma),
  )._replace(probs=draft_probs)


def report(inputs: VerificationInputs, verdict: Verdict) -> Verdict:
  """Adds the probabilities of the emitted tokens to a verdict.

  It may have those of the drafts, [gamma, 3], which are computed here if not.
  """
  draft, token = verdict.draft_index, verdict.next_token
  draft_probs = verdict.probs
  if draft_probs is None:
    draft_probs = values_at_draft(inputs, inputs.reported, draft)
    draft_probs = jnp.stack(draft_probs, -1)
  d = inputs.distributions_at(verdict.num_accepted, draft)
  law = inputs.method.law(d, inputs.lenience)
  bonus = inputs.bonus_distribution(d, law, draft)
  pi = jnp.where(verdict.next_source == BONUS, bonus, law)
  is_next = jnp.arange(inputs.gamma + 1) == verdict.num_accepted
  next_probs = jnp.stack([x[token] for x in (d.q, d.p, pi)])
  probs = jnp.pad(draft_probs, ((0, 1), (0, 0)))
  probs = jnp.where(is_next[:, None], next_probs, probs)
  return verdict._replace(probs=probs)


def _defers_at_bonus(
  inputs: VerificationInputs, d: methods.Distributions, draft: Array | int
) -> Bool[Array, ''] | bool:
  """Returns True if the bonus of `token` is deferred by a rule of no token."""
  rule, is_token = inputs.method.rule, inputs.config.verification == 'token'
  if rule is None or not (is_token and inputs.bonus_from_target):
    return False
  defers = rule(d, inputs.lenience)
  if jnp.ndim(defers):
    return False
  # Where q is unknown the verifier decides.
  return ~inputs.has_bonus_probs[draft] | (defers > 0)


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
  return make_verdict(
    inputs,
    n,
    is_rejected=n < draft_length,
    residual=lambda d, _: method.residual(d, inputs.lenience),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
    acceptance=acceptance,
  )._replace(
    accept_uniforms=jnp.append(accept_uniforms, jnp.nan),
    probs=jnp.stack(probs, -1) if probs else None,
  )


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
  smaller gamma. Decisions are those of vLLM; its authors' code is not public.
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
  return make_verdict(
    inputs,
    n,
    is_rejected=n < draft_length,
    residual=lambda d, law: methods.normalize(
      jnp.maximum(0, w[n] * law - d.q), law
    ),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
  )


def look_ahead(
  inputs: VerificationInputs,
  accept_uniforms: Float[Array, 'gamma'],
  sample_uniforms: Float[Array, 'n'],
  window: int,
) -> Verdict:
  """Accepts tokens from the left, each by itself or by the tokens after it.

  A rule that reads one position cannot tell a paraphrase from a mistake. This
  is the deferred window of FLy (arXiv 2511.22972); vLLM's is a preset. Strict
  decoding at temperature 0 requires equality with the argmax.

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
  return make_verdict(
    inputs,
    n,
    is_rejected=n < draft_length,
    residual=lambda d, _: methods.normalize(jnp.maximum(0, d.p - d.q), d.p),
    sample_uniforms=sample_uniforms,
    deferred=deferred,
    acceptance=acceptance,
  )


def make_verdict(
  inputs: VerificationInputs,
  num_accepted: Int[Array, ''],
  *,
  is_rejected: Bool[Array, ''],
  residual: Callable[[methods.Distributions, Array], Array],
  sample_uniforms: Float[Array, 'n'],
  deferred: Array,
  acceptance: Float[Array, 'gamma'] | None = None,
  draft_index: Int[Array, ''] | int = 0,
  law: Float[Array, 'V'] | None = None,
) -> Verdict:
  """Samples the token after the accepted ones, and returns the verdict.

  Only the position that is sampled is evaluated. `residual` is a function of
  its distributions and law; the latter is the method's if it is None.
  """
  d = inputs.distributions_at(num_accepted, draft_index)
  if law is None:
    law = inputs.method.law(d, inputs.lenience)
  bonus = inputs.bonus_distribution(d, law, draft_index)
  weights = jnp.where(is_rejected, residual(d, law), bonus)
  is_valid = processing.has_mass(weights)
  if inputs.config.kind.keeps_law:
    # A residual is clipped at 0, which hides a law with negative values.
    is_valid &= processing.has_mass(law) | ~is_rejected
  if acceptance is not None:
    # A comparison with nan is False, which looks like a rejection.
    index = jnp.arange(inputs.gamma)
    is_examined = (index < inputs.draft_lengths[0]) & (index <= num_accepted)
    is_valid &= (jnp.isfinite(acceptance) | ~is_examined).all()
  deferred = jnp.append(deferred > 0, False)
  is_bonus = (jnp.arange(len(deferred)) == num_accepted) & ~is_rejected
  bonus_deferred = _defers_at_bonus(inputs, d, draft_index)
  return Verdict(
    num_accepted=num_accepted,
    next_token=processing.sample_from_uniforms(sample_uniforms, weights),
    next_source=jnp.where(is_rejected, RESIDUAL, BONUS),
    deferred=jnp.where(is_bonus, bonus_deferred, deferred),
    draft_index=jnp.asarray(draft_index, jnp.int32),
    is_valid=is_valid,
  )
