"""What a method is, and how to make one from a target or from a rule.

A method looks at two distributions over the vocabulary, the drafter's q and
the verifier's p, at one position of one sequence, and declares what comes out:

  law = q * acceptance + (1 - sum(q * acceptance)) * residual.            (L)

A draft x ~ q is kept with probability acceptance(x), else a token is drawn
from the residual. Speculative decoding is the case law = p. A speculative
cascade (Narasimhan et al., ICLR 2025, arXiv 2405.19261; the numbers of
equations are theirs) lets a deferral rule r choose the law, called the target
pi, and gets it exactly with

  acceptance = min(1, pi / q),   residual = norm(max(0, pi - q)).

Symbols: mq = max q, mp = max p, TV(p, q) = sum max(0, p - q), lam = lenience.
Leniences are numbers whose meaning belongs to the method; `Method.strict` and
`Method.drafter_only` say at which of them the law is exactly p or exactly q.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Probs = Float[Array, 'V']
Lenience = Float[Array, ''] | np.floating | float

# Below this a probability is a zero that can still be divided by.
_TINY = jnp.finfo(jnp.float32).tiny


class Distributions(NamedTuple):
  """What drafter and verifier say of one position, each [V], float32.

  Attributes:
    q: What the drafter would sample from: temperature, top-k, top-p and
      forbidden tokens applied.
    p: What the verifier would sample from, the same applied to it.
    q_gate: What the deferral rule sees of the drafter: its raw logits at
      temperature 1, for at temperature 0 q is one-hot and tells a rule
      nothing; or q itself, if `verification.VerificationConfig.gate` says so.
    p_gate: What the deferral rule sees of the verifier.
    p_logits: The verifier's raw logits, for rules whose thresholds are of
      logits; None where only probabilities are known.
    cap: Which tokens a capped method may make likelier than p; None without a
      cap. See `contrib.capping`.
  """

  q: Probs
  p: Probs
  q_gate: Probs
  p_gate: Probs
  p_logits: Float[Array, 'V'] | None = None
  cap: Bool[Array, 'V'] | None = None


Rule = Callable[[Distributions, Lenience], Array]
Target = Callable[[Distributions, Lenience], Probs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """One way of combining a drafter and a verifier.

  All functions take (Distributions, lenience) and are written for one
  position; callers `vmap` them.

  Attributes:
    name: Key in `METHODS`.
    equation: Its defining equation, in text.
    reference: The paper that it comes from; empty where there is none.
    acceptance: [V], probability of keeping each possible draft token.
    residual: [V], what to sample from instead; sums to 1.
    law: [V], what comes out, equation (L); also what the bonus token, for
      which there is no draft, is sampled from.
    strict: A lenience at which the law is exactly p; None: there is none.
    drafter_only: A lenience at which the law is exactly q; None: there is none.
    law_uses_q: Whether the law depends on q.
    rule: Which tokens are deferred to the verifier, bool, [] or [V]; None
      where the method has no deferral rule.
    single_target: Whether all tokens are verified against one distribution,
      the law. If not, only token verification can be asked for.
    bind: Called as bind(verifier, drafter) with a `Checkpoint` and a
      `BoundDrafter`; returns the method to decode with, or raises ValueError
      where the method does not fit the pair. None: the method fits every pair.
    load: Makes the method that a name with an argument stands for, such as
      'learned:FOLDER', of the argument. None: the name takes no argument.
    identity: A hash of what tells the method from others of the same name, as
      a folder's content can change; records keep it. Empty if nothing does.
  """

  name: str
  equation: str
  reference: str
  acceptance: Target
  residual: Target
  law: Target
  strict: float | None
  drafter_only: float | None
  law_uses_q: bool = True
  rule: Rule | None = None
  single_target: bool = True
  bind: Callable[[Any, Any], 'Method'] | None = None
  load: Callable[[str], 'Method'] | None = None
  identity: str = ''


def total_variation(
  p: Float[Array | np.ndarray, '*rows V'],
  q: Float[Array | np.ndarray, '*rows V'],
) -> Float[Array, '*rows']:
  """TV(p, q) = sum max(0, p - q)."""
  return jnp.maximum(0, p - q).sum(-1)


def normalize(weights: Probs, otherwise: Probs) -> Probs:
  """Returns weights / sum(weights), or `otherwise` if the sum is < 1e-30.

  Rounding can take a rejection whose probability is 0: there the residual is
  0 / 0, and must be neither nan nor token 0.
  """
  # Made once: where they are what rounding left, made again for their sum they
  # would be others.
  weights = jax.lax.optimization_barrier(weights)
  mass = weights.sum(-1, keepdims=True)
  # Below this the quotient would be of denormal numbers.
  has_mass = mass > 1e-30
  return jnp.where(has_mass, weights / jnp.where(has_mass, mass, 1), otherwise)


def ratio(
  target: Float[Array, '*shape'], q: Float[Array, '*shape']
) -> Float[Array, '*shape']:
  """min(1, target / q); 0 where the target is 0, or where either is nan."""
  # Comparisons, since XLA's max on a CPU can make a nan a number.
  safe = jnp.where(q > _TINY, q, _TINY)
  quotient = jnp.where((target >= q) & (target > 0), 1.0, target / safe)
  return jnp.where((q >= 0) & (target >= 0), quotient, 0)


def mixture(
  r: Array | np.floating,
  q: Float[Array | np.ndarray, 'V'],
  p: Float[Array | np.ndarray, 'V'],
) -> Probs:
  """Target of a deferral rule: q * (1 - r) + (sum r * q) * p, eq. (11).

  Args:
    r: 1 where the drafter's token is deferred, 0 where it is kept; [] for
      rules about the whole distribution, [V] for rules about tokens.
    q: Drafter, [V].
    p: Verifier, [V].

  Returns:
    pi, [V]; exactly q where nothing is deferred, exactly p where all is.
  """
  # Dividing by sum q, which is 1 up to rounding, makes all-deferred exact.
  deferred = (r * q).sum(-1) / q.sum(-1)
  return q * (1 - r) + deferred * p


def from_target(
  target: Target,
  *,
  name: str,
  equation: str,
  reference: str,
  strict: float | None,
  drafter_only: float | None,
  law_uses_q: bool = True,
  rule: Rule | None = None,
) -> Method:
  """The method whose law is `target`: exact speculative sampling from it."""

  def acceptance(d, lenience):
    return ratio(target(d, lenience), d.q)

  def residual(d, lenience):
    pi = target(d, lenience)
    return normalize(jnp.maximum(0, pi - d.q), pi)

  return Method(
    name=name,
    equation=equation,
    reference=reference,
    acceptance=acceptance,
    residual=residual,
    law=target,
    strict=strict,
    drafter_only=drafter_only,
    law_uses_q=law_uses_q,
    rule=rule,
  )


def from_rule(
  rule: Rule,
  *,
  name: str,
  equation: str,
  strict: float | None,
  drafter_only: float | None,
  reference: str = '',
) -> Method:
  """The speculative cascade of a deferral rule: target = mixture(rule)."""
  return from_target(
    lambda d, lenience: mixture(rule(d, lenience).astype(d.q.dtype), d.q, d.p),
    name=name,
    equation=equation,
    reference=reference,
    strict=strict,
    drafter_only=drafter_only,
    rule=rule,
  )


def law_of(acceptance: Target, residual: Target) -> Target:
  """Equation (L): the law of any acceptance with any residual."""

  def law(d, lenience):
    kept = d.q * acceptance(d, lenience)
    # sum q - sum kept, not 1 - sum kept: exactly 0 where all is kept.
    return kept + (d.q - kept).sum(-1) * residual(d, lenience)

  return law
