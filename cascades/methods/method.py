"""Methods, and their construction from a target or from a deferral rule.

A method reads two distributions over the vocabulary, the drafter's q and the
verifier's p, at one position of one sequence, and declares the emitted law:

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
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Probs = Float[Array, 'V']
Lenience = Float[Array, ''] | np.floating | float

# Below 0 by more than float32 rounds 1 - lam and divergences of p and q to.
BELOW_ZERO = -(2.0**-21)
# Divisors of probabilities are at least this.
_TINY = jnp.finfo(jnp.float32).tiny


class Distributions(NamedTuple):
  """The distributions of drafter and verifier at one position, float32.

  Attributes:
    q: The drafter's distribution, after temperature, truncation and forbidden
      tokens.
    p: The verifier's distribution, after the same.
    q_gate: The drafter's distribution that the deferral rule reads: the softmax
      of its raw logits at temperature 1, since at temperature 0 q is one-hot
      and tells a rule nothing; or q itself, with the option gate='processed'.
    p_gate: The verifier's distribution that the deferral rule reads.
    p_logits: The verifier's raw logits, for rules with thresholds of
      logits; None if only probabilities are known.
    forbidden: True for forbidden tokens; None if there are none.
  """

  q: Probs
  p: Probs
  q_gate: Probs
  p_gate: Probs
  p_logits: Float[Array, 'V'] | None = None
  forbidden: Bool[Array | np.ndarray, 'V'] | None = None


Rule = Callable[[Distributions, Lenience], Array]
Target = Callable[[Distributions, Lenience], Probs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A way of combining a drafter and a verifier.

  All functions take (Distributions, lenience) and are written for one
  position; callers `vmap` them.

  Attributes:
    name: Key in `METHODS`.
    equation: Its defining equation, in text.
    reference: The paper of the method; empty if there is none.
    acceptance: [V], probability of keeping each possible draft token.
    residual: [V], distribution of the token after a rejection; sums to 1.
    law: [V], distribution of the emitted token, equation (L); also that of the
      bonus token, for which there is no draft.
    strict: A lenience at which the law is exactly p; None if there is none.
    drafter_only: A lenience at which the law is exactly q; None if there is
      none.
    law_uses_q: True if the law depends on q.
    rule: True for the tokens that are deferred to the verifier, bool, [] or
      [V]; None if the method has no deferral rule.
    strict_up_to: The law is exactly p at every lenience up to this number, too;
      None: at `strict` alone.
    has_lenience: True if the functions read the lenience.
    reads_gates: True if the functions read `q_gate` or `p_gate`.
  """

  name: str
  equation: str
  reference: str = ''
  acceptance: Target
  residual: Target
  law: Target
  strict: float | None
  drafter_only: float | None
  law_uses_q: bool = True
  rule: Rule | None = None
  strict_up_to: float | None = None
  has_lenience: bool = True
  reads_gates: bool = True

  def is_strict(self, lenience: float) -> bool:
    """Returns True if the law is exactly p at a lenience."""
    limit = math.nan if self.strict_up_to is None else self.strict_up_to
    return lenience == self.strict or lenience <= limit

  def or_strict(self, lenience: float | None) -> float:
    """Returns a lenience, for None the strict one; ValueError without one."""
    lenience = self.strict if lenience is None else lenience
    if lenience is None:
      raise ValueError(
        f'lenience: must be given for {self.name}, which has no strict'
        ' lenience; give a number.'
      )
    return float(lenience)


def total_variation(
  p: Float[Array | np.ndarray, '*rows V'],
  q: Float[Array | np.ndarray, '*rows V'],
) -> Float[Array, '*rows']:
  """Computes TV(p, q) = sum max(0, p - q)."""
  return jnp.maximum(0, p - q).sum(-1)


def normalize(weights: Probs, fallback: Probs) -> Probs:
  """Returns weights / sum(weights), or `fallback` if the sum is < 1e-30.

  Rounding can cause a rejection of probability 0, whose residual is 0 / 0.
  """
  # Computed once: if the weights are rounding errors, computing them again for
  # the sum could give others.
  weights = jax.lax.optimization_barrier(weights)
  mass = weights.sum(-1, keepdims=True)
  # A smaller sum would be a quotient of denormal numbers.
  has_mass = mass > 1e-30
  return jnp.where(has_mass, weights / jnp.where(has_mass, mass, 1), fallback)


def ratio(
  target: Float[Array, '*shape'], q: Float[Array, '*shape']
) -> Float[Array, '*shape']:
  """Computes min(1, target / q); 0 if the target is 0 or either is nan."""
  # Comparisons, since XLA's max on a CPU can make a nan a number.
  safe = jnp.where(q > _TINY, q, _TINY)
  quotient = jnp.where((target >= q) & (target > 0), 1.0, target / safe)
  # XLA may divide target / safe as a product of two divisors, which underflows:
  # a target of 0 is no numerator.
  return jnp.where((q >= 0) & (target > 0), quotient, 0)


def mixture[ArrayT: (Array, np.ndarray)](
  r: ArrayT | np.floating, q: ArrayT, p: ArrayT
) -> ArrayT:
  """Computes the target of a rule, q (1 - r) + (sum r q) p, eq. (11).

  r, [] or [V], is 1 where the drafter's token is deferred. The result is
  exactly q where nothing is deferred, exactly p where all is.
  """
  # Dividing by sum q, which is 1 up to rounding, makes all-deferred exact.
  deferred = (r * q).sum(-1) / q.sum(-1)
  return q * (1 - r) + deferred * p


def from_target(target: Target, **attributes: Any) -> Method:
  """Makes the method whose law is `target`, by speculative sampling.

  The other arguments are attributes of `Method`.
  """

  def acceptance(d, lenience):
    return ratio(target(d, lenience), d.q)

  def residual(d, lenience):
    pi = target(d, lenience)
    return normalize(jnp.maximum(0, pi - d.q), pi)

  return Method(
    acceptance=acceptance, residual=residual, law=target, **attributes
  )


def from_rule(rule: Rule, **attributes: Any) -> Method:
  """Makes the speculative cascade of a rule, with target mixture(rule).

  The other arguments are attributes of `Method`.
  """
  return from_target(
    lambda d, lenience: mixture(rule(d, lenience).astype(d.q.dtype), d.q, d.p),
    rule=rule,
    **attributes,
  )


def law_of(acceptance: Target, residual: Target) -> Target:
  """Returns the law of an acceptance and a residual, equation (L)."""

  def law(d, lenience):
    accepted = d.q * acceptance(d, lenience)
    # sum q - sum accepted, not 1 - sum accepted: exactly 0 if all is accepted.
    return accepted + (d.q - accepted).sum(-1) * residual(d, lenience)

  return law


def from_acceptance(
  acceptance: Target, residual: Target, **attributes: Any
) -> Method:
  """Makes the method of an acceptance and a residual, with its law."""
  law = law_of(acceptance, residual)
  return Method(acceptance=acceptance, residual=residual, law=law, **attributes)


def declares(
  methods: list[Method], make: Callable[..., Method], **usual: Any
) -> Callable[..., Callable]:
  """Returns a decorator that lists the method of the function below it."""
  usual = dict(reads_gates=make is from_rule) | usual

  def declare(equation: str, reference: str, **attributes: Any):
    def add(function):
      fields = dict(name=function.__name__, equation=equation)
      fields |= dict(reference=reference) | usual | attributes
      methods.append(make(function, **fields))
      return function

    return add

  return declare
