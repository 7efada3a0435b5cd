"""Every method as a pair: what to keep of a draft, what to sample instead.

A method looks at two distributions over the vocabulary, the drafter's q and
the verifier's p, at one position of one sequence, and declares what comes out:

  law = q * acceptance + (1 - sum(q * acceptance)) * residual.            (L)

A draft x ~ q is kept with probability acceptance(x), else a token is drawn
from the residual. Speculative decoding is the case law = p. A speculative
cascade (Narasimhan et al., ICLR 2025, arXiv 2405.19261; the numbers of
equations below are theirs) lets a deferral rule r choose the law, called the
target pi, and gets it exactly with

  acceptance = min(1, pi / q),   residual = norm(max(0, pi - q)).

Symbols: mq = max q, mp = max p, TV(p, q) = sum max(0, p - q), lam = lenience.
Leniences are numbers whose meaning belongs to the method; `Method.strict` and
`Method.drafter_only` say at which of them the law is exactly p or exactly q.

To add a method, write one small function and one line in `METHODS`, or call
`register` from a notebook.
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Probs = Float[Array, 'V']
Lenience = Float[Array, '']

# Below this a probability is a zero that can still be divided by.
_TINY = jnp.finfo(jnp.float32).tiny


class Distributions(NamedTuple):
  """What drafter and verifier say of one position, each [V], float32.

  Attributes:
    q: What the drafter would sample from: temperature, top-k, top-p and
      forbidden tokens applied.
    p: What the verifier would sample from, likewise.
    q_gate: What the deferral rule sees of the drafter: its raw logits at
      temperature 1. At temperature 0 q is one-hot and tells a rule nothing.
    p_gate: What the deferral rule sees of the verifier.
  """

  q: Probs
  p: Probs
  q_gate: Probs
  p_gate: Probs


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
    reference: Where it comes from.
    acceptance: [V], probability of keeping each possible draft token.
    residual: [V], what to sample from instead; sums to 1.
    law: [V], what comes out, equation (L); also what the bonus token, for
      which there is no draft, is sampled from.
    strict: A lenience at which the law is exactly p; None: there is none.
    drafter_only: A lenience at which the law is exactly q; None likewise.
    needs_bonus_draft: Whether the law depends on q.
    rule: Which tokens are deferred to the verifier, bool, [] or [V]; None
      where the method has no deferral rule.
  """

  name: str
  equation: str
  reference: str
  acceptance: Target
  residual: Target
  law: Target
  strict: float | None
  drafter_only: float | None
  needs_bonus_draft: bool = True
  rule: Rule | None = None


def total_variation(p: Probs, q: Probs) -> Float[Array, '']:
  """TV(p, q) = sum max(0, p - q)."""
  return jnp.maximum(0, p - q).sum(-1)


def normalised(weights: Probs, otherwise: Probs) -> Probs:
  """weights / sum(weights), or `otherwise` where there is no mass.

  Rounding can take a rejection whose probability is 0: there the residual is
  0 / 0, and must be neither nan nor token 0.
  """
  mass = weights.sum(-1, keepdims=True)
  has_mass = mass > 0
  return jnp.where(has_mass, weights / jnp.where(has_mass, mass, 1), otherwise)


def ratio(target: Probs, q: Probs) -> Probs:
  """min(1, target / q); 1 where both are 0, for such tokens are not drawn."""
  safe = jnp.maximum(q, _TINY)
  return jnp.where(target >= q, 1.0, target / safe)


def mixture(r: Array, q: Probs, p: Probs) -> Probs:
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
  needs_bonus_draft: bool = True,
  rule: Rule | None = None,
) -> Method:
  """The method whose law is `target`: exact speculative sampling from it."""

  def acceptance(d, lenience):
    return ratio(target(d, lenience), d.q)

  def residual(d, lenience):
    pi = target(d, lenience)
    return normalised(jnp.maximum(0, pi - d.q), pi)

  return Method(
    name=name,
    equation=equation,
    reference=reference,
    acceptance=acceptance,
    residual=residual,
    law=target,
    strict=strict,
    drafter_only=drafter_only,
    needs_bonus_draft=needs_bonus_draft,
    rule=rule,
  )


def from_rule(
  rule: Rule,
  *,
  name: str,
  equation: str,
  strict: float | None,
  drafter_only: float | None,
  reference: str = 'Narasimhan et al. 2025, arXiv 2405.19261',
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


# --- Deferral rules, in the order of the paper. True defers.


def chow(d: Distributions, lenience: Lenience):
  """Defer where the drafter is unsure: mq < 1 - lam, eq. (2)."""
  return d.q_gate.max(-1) < 1 - lenience


def diff(d: Distributions, lenience: Lenience):
  """Defer where the verifier is surer by more than lam, eq. (5)."""
  return d.q_gate.max(-1) < d.p_gate.max(-1) - lenience


def opt(d: Distributions, lenience: Lenience):
  """As Diff, lam weighed by what a deferral costs: lam * TV(p, q), eq. (10).

  The more the two disagree, the likelier a rejection: hence the minus sign.
  """
  distance = total_variation(d.p, d.q)
  # An infinite lenience times no distance is no price, not nan.
  price = jnp.where(distance > 0, lenience * distance, 0)
  return d.q_gate.max(-1) < d.p_gate.max(-1) - price


def token_v1(d: Distributions, lenience: Lenience):
  """Defer tokens with q(v) < mp - lam, eq. (13)."""
  return d.q_gate < d.p_gate.max(-1) - lenience


def token_v2(d: Distributions, lenience: Lenience):
  """Defer tokens with p(v) < mp - lam, eq. (14)."""
  return d.p_gate < d.p_gate.max(-1) - lenience


def token_v3(d: Distributions, lenience: Lenience):
  """Defer tokens with p(v) < (1 - lam) * mp, eq. (15)."""
  return d.p_gate < (1 - lenience) * d.p_gate.max(-1)


# --- Lenient speculative decoding (Leviathan et al. 2023, appendix A.5).


def speed_acceptance(d: Distributions, lenience: Lenience) -> Probs:
  """min(1, p / ((1 - lam) * q))."""
  return ratio(d.p, (1 - lenience) * d.q)


def speed_residual(d: Distributions, lenience: Lenience) -> Probs:
  """norm(max(0, p - q)), whatever the lenience."""
  del lenience
  return normalised(jnp.maximum(0, d.p - d.q), d.p)


def law_of(acceptance: Target, residual: Target) -> Target:
  """Equation (L): the law of any acceptance with any residual."""

  def law(d, lenience):
    kept = d.q * acceptance(d, lenience)
    # sum q - sum kept, not 1 - sum kept: exactly 0 where all is kept.
    return kept + (d.q - kept).sum(-1) * residual(d, lenience)

  return law


METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
  """Adds a method under its name, so that every tool can be asked for it.

  Raises:
    ValueError: Another method has the name.
  """
  if METHODS.get(method.name, method) is not method:
    raise ValueError(
      f'method: the name {method.name!r} is taken; choose another.'
    )
  METHODS[method.name] = method
  return method


for _method in (
  from_target(
    lambda d, lenience: d.q,
    name='drafter_only',
    equation='pi = q',
    reference='baseline',
    strict=None,
    drafter_only=0.0,
  ),
  Method(
    name='verifier_only',
    equation='pi = p, no draft is kept',
    reference='baseline',
    acceptance=lambda d, lenience: jnp.zeros_like(d.q),
    residual=lambda d, lenience: d.p,
    law=lambda d, lenience: d.p,
    strict=0.0,
    drafter_only=None,
    needs_bonus_draft=False,
  ),
  Method(
    name='speed',
    equation='a = min(1, p / ((1 - lam) q)), residual norm(max(0, p - q))',
    reference='Leviathan et al. 2023, arXiv 2211.17192, appendix A.5',
    acceptance=speed_acceptance,
    residual=speed_residual,
    law=law_of(speed_acceptance, speed_residual),
    strict=0.0,
    drafter_only=1.0,
  ),
  from_rule(
    chow,
    name='chow',
    equation='defer if mq < 1 - lam',
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    diff,
    name='diff',
    equation='defer if mq < mp - lam',
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    opt,
    name='opt',
    equation='defer if mq < mp - lam * TV(p, q)',
    strict=-float('inf'),
    drafter_only=float('inf'),
  ),
  from_rule(
    token_v1,
    name='token_v1',
    equation='defer v if q(v) < mp - lam',
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    token_v2,
    name='token_v2',
    equation='defer v if p(v) < mp - lam',
    # Any negative lenience; at 0 the verifier's favourite is still kept.
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    token_v3,
    name='token_v3',
    equation='defer v if p(v) < (1 - lam) mp',
    # Any negative lenience; at 0 the verifier's favourite is still kept.
    strict=-1.0,
    drafter_only=1.0,
  ),
):
  register(_method)

# Names that the paper's one-token notebook uses.
ALIASES = {
  'cascade_chow': 'chow',
  'cascade_diff': 'diff',
  'cascade_opt': 'opt',
  'cascade_tokenV1': 'token_v1',
  'cascade_tokenV2': 'token_v2',
  'cascade_tokenV3': 'token_v3',
}


def get_method(method: str | Method) -> Method:
  """The method of a name, an alias of it, or the method itself.

  Raises:
    ValueError: No such method; names the nearest and the list.
  """
  if isinstance(method, Method):
    return method
  name = ALIASES.get(method, method)
  if name in METHODS:
    return METHODS[name]
  near = difflib.get_close_matches(str(name), [*METHODS, *ALIASES], 1, 0.0)
  raise ValueError(
    f'method: {method!r} is not known; did you mean {near[0]!r}? There are'
    f' {", ".join(METHODS)}.'
  )


def get_acceptance_residual_fns(method: str | Method, lenience: float):
  """The notebook's interface: acceptance and residual of four batched inputs.

  Args:
    method: A name, the notebook's or ours.
    lenience: The notebook's `alpha`.

  Returns:
    Two functions of (probs_small, probs_large, probs_small_unscaled,
    probs_large_unscaled, token_small), shapes [B, 1, V] (four times) and
    [B, 1]. The first gives the probability [B, 1] of keeping `token_small`,
    the second the distribution [B, 1, V] to sample from otherwise. Unlike the
    notebook's, it is normalised. The notebook also floors q at 1e-10 in its
    quotient, which accepts rarer tokens too seldom; here nothing is floored.

  Raises:
    ValueError: No such method.
  """
  method = get_method(method)

  def over_positions(fn):
    def one(q, p, q_gate, p_gate):
      return fn(Distributions(q, p, q_gate, p_gate), jnp.asarray(lenience))

    return jax.vmap(jax.vmap(one))

  def acceptance(
    probs_small,
    probs_large,
    probs_small_unscaled,
    probs_large_unscaled,
    token_small,
  ):
    kept = over_positions(method.acceptance)(
      probs_small, probs_large, probs_small_unscaled, probs_large_unscaled
    )
    return jnp.take_along_axis(kept, token_small[..., None], -1)[..., 0]

  def residual(
    probs_small,
    probs_large,
    probs_small_unscaled,
    probs_large_unscaled,
    token_small,
  ):
    del token_small
    return over_positions(method.residual)(
      probs_small, probs_large, probs_small_unscaled, probs_large_unscaled
    )

  return acceptance, residual
