"""Relaxations of speculative decoding besides the rules of `cascade.py`.

Truncation, here by the lenience and decoded losslessly, is a baseline: a rule
that drops the verifier's unlikely tokens must beat it (arXiv 2607.26627).
A method that a docstring calls unverified was written from a description and
not compared with its authors' code. Its declared law is exact all the same; it
may differ from the law that its authors mean.
"""

import jax
import jax.numpy as jnp
from jax.scipy import special
from jaxtyping import Array, Float

from cascades.methods.method import (
  BELOW_ZERO,
  Distributions,
  Lenience,
  Method,
  Probs,
  declares,
  from_acceptance,
  from_rule,
  from_target,
  normalize,
  ratio,
  total_variation,
)
from cascades.methods.processing import argmax_lowest_id, truncate

_INF = float('inf')
_FUZZY = 'Holsman et al. 2025, arXiv 2502.20704'
METHODS: list[Method] = []


_acceptance = declares(METHODS, from_acceptance)
_target = declares(METHODS, from_target, strict=0.0, strict_up_to=0.0)
_rule = declares(
  METHODS, from_rule, strict=-1.0, strict_up_to=BELOW_ZERO, drafter_only=_INF
)


def entropy(p: Probs) -> Float[Array, '']:
  """Computes H(p) = -sum p log p, in nats."""
  return special.entr(p).sum(-1)


def kl(p: Probs, q: Probs) -> Float[Array, '']:
  """Computes KL(p || q) in nats; inf if q lacks a token of p."""
  return special.rel_entr(p, q).sum(-1)


@_acceptance(
  'a = min(1, p / ((1 - lam) q)), residual norm(max(0, p - q))',
  'Leviathan et al. 2023, arXiv 2211.17192, appendix A.5',
  residual=lambda d, lenience: normalize(jnp.maximum(0, d.p - d.q), d.p),
  strict=0.0,
  drafter_only=1.0,
)
def speed(d: Distributions, lenience: Lenience) -> Probs:
  """From lam = 1 on, a = 1 where q > 0."""
  # Infinity times 0 must be 0; a nan must stay nan.
  scaled_q = jnp.where(d.q == 0, 0, jnp.maximum(1 - lenience, 0) * d.q)
  return jnp.where((lenience >= 1) & (d.q > 0), 1.0, ratio(d.p, scaled_q))


def _clipped(q: Probs, p: Probs, keep: Float[Array, '']) -> Probs:
  """Computes max(min(q, p / keep), s p), with s so that the sum is 1.

  s is the root of an increasing, convex, piecewise linear function. Newton's
  steps from s = 1, where the function is at least 1, decrease to the root.
  """
  tiny = jnp.finfo(q.dtype).tiny
  lower = jnp.where(p >= keep * q, q, p / jnp.maximum(keep, tiny))

  def root(s):
    raised = s * p > lower
    mass = jnp.where(raised, p, 0).sum(-1)
    rest = q.sum(-1) - jnp.where(raised, 0, lower).sum(-1)
    return jnp.where(mass > 0, rest / jnp.where(mass > 0, mass, 1), s)

  start = jnp.ones((), q.dtype)
  _, s = jax.lax.while_loop(
    lambda pair: pair[1] < pair[0],
    lambda pair: (pair[1], jnp.minimum(root(pair[1]), pair[1])),
    (start, jnp.clip(root(start), 0, 1)),
  )
  pi = jnp.maximum(lower, s * p)
  return pi / pi.sum(-1)


@_target(
  'pi = max(min(q, p / (1 - lam)), p / b), b normalising',
  'Narasimhan et al. 2025, appendix (unverified)',
  drafter_only=1.0,
)
def lossy(d: Distributions, lenience: Lenience) -> Probs:
  """Is a baseline of two parameters there; b >= 1 - lam follows from lam."""
  pi = _clipped(d.q, d.p, 1 - jnp.clip(lenience, 0, 1))
  return _with_limits(d, lenience, pi, 1)


def _with_limits(d, lenience, pi, drafter_only) -> Probs:
  """Replaces pi by p up to lenience 0, and by q from `drafter_only` on."""
  pi = jnp.where(lenience < drafter_only, pi, d.q)
  return jnp.where(lenience > 0, pi, d.p)


@_target(
  'lossy at the largest lenience for which KL(pi || p) <= lam',
  'Tran-Thien 2023, mentored decoding',
  drafter_only=_INF,
)
def mentored(d: Distributions, lenience: Lenience) -> Probs:
  """Finds the lenience a of `lossy` by bisection of log(1 - a)."""
  q, p = d.q, d.p
  dtype = q.dtype

  def halve(_, ends):
    low, high = ends
    center = (low + high) / 2
    fits = kl(_clipped(q, p, jnp.exp(-center)), p) <= lenience
    return jnp.where(fits, center, low), jnp.where(fits, high, center)

  # 1 - a from 1 down to exp(-80), nearly the least that float32 can hold.
  ends = jnp.zeros((), dtype), jnp.full((), 80, dtype)
  low, _ = jax.lax.fori_loop(0, 40, halve, ends)
  pi = _clipped(q, p, jnp.exp(-low))
  return _with_limits(d, lenience, pi, kl(q, p))


@_rule(
  'defer if -log p(argmax q) > lam',
  'Kim et al. 2023, arXiv 2302.07863, as BiLD* in 2405.19261',
)
def bild(d: Distributions, lenience: Lenience):
  token = argmax_lowest_id(d.q_gate)
  return -jnp.log(jnp.take(d.p_gate, token, axis=-1)) > lenience


@_rule('defer if TV(p, q) > lam', _FUZZY, drafter_only=1.0)
def fuzzy_tv(d: Distributions, lenience: Lenience):
  # Rounding could make TV of two disjoint distributions more than 1.
  return jnp.minimum(total_variation(d.p_gate, d.q_gate), 1) > lenience


@_rule('defer if KL(q || p) > lam', f"{_FUZZY}, its authors' default")
def fuzzy_kl_qp(d: Distributions, lenience: Lenience):
  return kl(d.q_gate, d.p_gate) > lenience


@_rule('defer if KL(p || q) > lam', _FUZZY)
def fuzzy_kl_pq(d: Distributions, lenience: Lenience):
  return kl(d.p_gate, d.q_gate) > lenience


@_rule('defer if JS(p, q) > lam', _FUZZY, drafter_only=1.0)
def fuzzy_js(d: Distributions, lenience: Lenience):
  """JS <= log 2 is the mean of KL(p || m) and KL(q || m), m = (p + q) / 2."""
  m = (d.p_gate + d.q_gate) / 2
  return (kl(d.p_gate, m) + kl(d.q_gate, m)) / 2 > lenience


@_rule(
  'defer if (KL(m || p) + KL(m || q)) / 2 > lam, m = (p + q) / 2',
  f"{_FUZZY}, as its authors' code",
)
def fuzzy_js_unbounded(d: Distributions, lenience: Lenience):
  """Their code calls this mean JS; inf if p or q lacks a token of the other."""
  m = (d.p_gate + d.q_gate) / 2
  return (kl(m, d.p_gate) + kl(m, d.q_gate)) / 2 > lenience


@_rule(
  'defer if H(top 3 of p) < (1 - lam) log 3',
  'after the gate of FLy, arXiv 2511.22972, normalized',
  drafter_only=1.0,
)
def undecided(d: Distributions, lenience: Lenience):
  top, _ = jax.lax.top_k(d.p_gate, min(3, d.p_gate.shape[-1]))
  relative_entropy = entropy(top / top.sum(-1, keepdims=True)) / jnp.log(3.0)
  return relative_entropy < 1 - lenience


@_rule(
  'defer v if z(v) < (1 - lam) max z, or if it is not in the top 2',
  'MARS, arXiv 2601.15498 (unverified)',
  drafter_only=None,
  reads_gates=False,
)
def margin(d: Distributions, lenience: Lenience):
  """Reads raw logits z; if max z <= 0, a quotient is no margin: defers all."""
  z = d.p_logits
  if z is None:
    raise ValueError(
      'method: margin needs raw logits, not probabilities; take another method.'
    )
  largest = z.max(-1)
  # Equal logits at the border are kept together.
  second = jnp.where(
    jnp.arange(z.size) == argmax_lowest_id(z), -jnp.inf, z
  ).max(-1)
  near = (z >= second) & (z >= (1 - lenience) * largest)
  return ~(near & (largest > 0))


def typical_rule(d: Distributions, lenience: Lenience):
  """Medusa's eps is 0.09, lam = 0.91. The law is eq. (11) with this rule.

  The published acceptance, 0 or 1, rejects more drafts than the law requires.
  """
  eps = 1 - lenience
  scale = jnp.sqrt(jnp.maximum(eps, 0)) * jnp.exp(-entropy(d.p_gate))
  return d.p_gate <= jnp.minimum(eps, scale)


@_acceptance(
  'defer v if p(v) <= min(eps, sqrt(eps) exp(-H(p))), eps = 1 - lam',
  'Cai et al. 2024 (Medusa), arXiv 2401.10774',
  residual=lambda d, lenience: d.p,
  # exp(-H(p)) can be far below max p, so no finite lenience is strict.
  strict=-_INF,
  drafter_only=2.0,
  rule=typical_rule,
  reads_gates=True,
)
def typical(d: Distributions, lenience: Lenience) -> Probs:
  return (~typical_rule(d, lenience)).astype(d.q.dtype)


@_target(
  'pi = lam q + (1 - lam) p',
  'static ensemble, baseline of arXiv 2604.07622',
  drafter_only=1.0,
)
def ensemble(d: Distributions, lenience: Lenience) -> Probs:
  share = jnp.clip(lenience, 0, 1)
  return share * d.q + (1 - share) * d.p


@_target(
  'pi = norm(p^(1 + lam) / q^lam where p >= mp / 10)',
  'Li et al. 2022, arXiv 2210.15097',
  strict=None,
  strict_up_to=None,
  drafter_only=None,
)
def contrastive(d: Distributions, lenience: Lenience) -> Probs:
  """Is, in logits z, softmax(((1 + b) zp - b zq) / T) with b = lam.

  This is the form of O'Brien and Lewis 2023. A token that truncation removed
  from q has the least of the remaining probabilities.
  """
  least_q = jnp.where(d.q > 0, d.q, jnp.inf).min(-1)
  log_q = jnp.log(jnp.maximum(d.q, least_q))
  plausible = d.p >= 0.1 * d.p.max(-1)
  log_p = jnp.log(jnp.where(plausible, d.p, 1))
  # Far beyond any use; keeps infinity from turning into nan.
  weight = jnp.clip(lenience, -1e3, 1e3)
  scores = log_p + weight * (log_p - log_q)
  return jax.nn.softmax(jnp.where(plausible, scores, -jnp.inf), axis=-1)


def _raised(d: Distributions, lenience: Lenience) -> Probs:
  """Computes h(x) = min(1, p(x) + sqrt(2 lam p(x) (1 - p(x))))."""
  variance = d.p * (1 - d.p)
  # Infinity times 0 must be 0.
  step = jnp.where(variance > 0, 2 * jnp.maximum(lenience, 0) * variance, 0)
  return jnp.minimum(1, d.p + jnp.sqrt(step))


def cactus_residual(d: Distributions, lenience: Lenience) -> Probs:
  """Computes the mean, over the rejected x, of norm(max(0, h_x - q)).

  h_x(x) = h(x) and h_x(v) = c_x * p(v) elsewhere, c_x = (1 - h(x)) / (1 -
  p(x)): x matters through c_x alone. With w_x = q(x) (1 - acceptance(x)) and
  Z(c) = sum_v max(0, c p(v) - q(v)), the sum over x of w_x max(0, c_x p(v) -
  q(v)) / Z(c_x) needs two sorted lists, of c_x and of q(v) / p(v).
  """
  q, p = d.q, d.p
  tiny = jnp.finfo(q.dtype).tiny
  h = _raised(d, lenience)
  rejected = q * (1 - ratio(h, q))
  c = jnp.where(p < 1, (1 - h) / jnp.where(p < 1, 1 - p, 1), 0)
  r = jnp.where(p > 0, q / jnp.maximum(p, tiny), jnp.inf)

  def sums(*sorted_weights):
    zero = jnp.zeros((1,), q.dtype)
    return [jnp.append(zero, jnp.cumsum(x)) for x in sorted_weights]

  # Z(c): sums of p and q over the tokens with q / p < c.
  sorted_r, *weights = jax.lax.sort((r, p, q), num_keys=1)
  below = jnp.searchsorted(sorted_r, c)
  sums_p, sums_q = (x[below] for x in sums(*weights))
  # Z is never less than w; rounding must not make it so.
  mass = jnp.maximum(c * sums_p - sums_q, rejected)
  share = jnp.where(mass > 0, rejected / jnp.where(mass > 0, mass, 1), 0)

  # For each v, sums over the x with c_x > q(v) / p(v).
  sorted_c, *weights = jax.lax.sort((-c, share * c, share), num_keys=1)
  above = jnp.searchsorted(sorted_c, -r)
  sums_c, sums_1 = (x[above] for x in sums(*weights))
  return normalize(jnp.maximum(p * sums_c - q * sums_1, 0), p)


@_acceptance(
  'a = min(1, h / q), h = min(1, p + sqrt(2 lam p (1 - p)))',
  'arXiv 2604.04987',
  residual=cactus_residual,
  strict=0.0,
  strict_up_to=0.0,
  drafter_only=None,
)
def cactus(d: Distributions, lenience: Lenience) -> Probs:
  """The target for x is p raised to h(x) at x."""
  return ratio(_raised(d, lenience), d.q)


_truncation = declares(
  METHODS,
  from_target,
  strict=0.0,
  strict_up_to=0.0,
  drafter_only=None,
  law_uses_q=False,
)


@_truncation(
  'pi = norm(p where p >= lam mp)', 'Nguyen et al. 2024, arXiv 2407.01082'
)
def min_p(d: Distributions, lenience: Lenience) -> Probs:
  return truncate(d.p, min_p=jnp.clip(lenience, 0, 1))


@_truncation(
  'pi = norm(p on the fewest tokens of mass 1 - lam)',
  'Holtzman et al. 2020, arXiv 1904.09751',
)
def top_p(d: Distributions, lenience: Lenience) -> Probs:
  return truncate(d.p, top_p=jnp.clip(1 - lenience, 0, 1))


@_truncation(
  'pi = norm(p on its lam likeliest tokens)',
  'Fan et al. 2018, arXiv 1805.04833',
  strict=_INF,
  strict_up_to=None,
)
def top_k(d: Distributions, lenience: Lenience) -> Probs:
  # With all ties of the last token.
  k = jnp.clip(lenience, 1, d.p.shape[-1]).astype(jnp.int32)
  return truncate(d.p, top_k=k)


@_truncation(
  'pi = norm(p where p >= min(lam, sqrt(lam) exp(-H(p))))',
  'Hewitt et al. 2022, arXiv 2210.15191',
)
def eta(d: Distributions, lenience: Lenience) -> Probs:
  return truncate(d.p, eta=jnp.maximum(lenience, 0))
