"""Baselines: one model alone, and truncation.

A rule that drops the verifier's unlikely tokens resembles truncation, so it
must beat truncation itself: sampling from a truncated p, decoded losslessly
(arXiv 2607.26627). Here the lenience is the parameter of the truncation. The
drafter affects the speed only, not the law.
"""

import jax.numpy as jnp

from cascades.methods import processing
from cascades.methods.method import (
  Distributions,
  Lenience,
  Method,
  Probs,
  from_target,
)


def min_p(d: Distributions, lenience: Lenience) -> Probs:
  """Returns norm(p) on {v: p(v) >= lam * mp}."""
  return processing.truncate(d.p, min_p=jnp.clip(lenience, 0, 1))


def top_p(d: Distributions, lenience: Lenience) -> Probs:
  """Returns norm(p) on the fewest tokens that hold the mass 1 - lam."""
  return processing.truncate(d.p, top_p=jnp.clip(1 - lenience, 0, 1))


def top_k(d: Distributions, lenience: Lenience) -> Probs:
  """Returns norm(p) on its lam most probable tokens and their ties."""
  k = jnp.clip(lenience, 1, d.p.shape[-1]).astype(jnp.int32)
  return processing.truncate(d.p, top_k=k)


def eta(d: Distributions, lenience: Lenience) -> Probs:
  """Returns norm(p) on {v: p(v) >= min(lam, sqrt(lam) * exp(-H(p)))}."""
  return processing.truncate(d.p, eta=jnp.maximum(lenience, 0))


def _drafter(d: Distributions, lenience: Lenience) -> Probs:
  del lenience
  return d.q


METHODS = (
  from_target(
    _drafter,
    name='drafter_only',
    equation='pi = q',
    reference='baseline',
    strict=None,
    drafter_only=0.0,
  ),
  Method(
    name='verifier_only',
    equation='pi = p, token verification keeps no draft',
    reference='baseline',
    acceptance=lambda d, lenience: jnp.zeros_like(d.q),
    residual=lambda d, lenience: d.p,
    law=lambda d, lenience: d.p,
    strict=0.0,
    drafter_only=None,
    law_uses_q=False,
    strict_up_to=float('inf'),
  ),
  from_target(
    _drafter,
    name='always_accept',
    equation='pi = q, read by the verifier all the same',
    reference='baseline',
    strict=None,
    drafter_only=0.0,
  ),
)

TRUNCATIONS = (
  from_target(
    min_p,
    name='min_p',
    equation='pi = norm(p where p >= lam mp)',
    reference='Nguyen et al. 2024, arXiv 2407.01082',
    strict=0.0,
    drafter_only=None,
    law_uses_q=False,
    strict_up_to=0.0,
  ),
  from_target(
    top_p,
    name='top_p',
    equation='pi = norm(p on the fewest tokens of mass 1 - lam)',
    reference='Holtzman et al. 2020, arXiv 1904.09751',
    strict=0.0,
    drafter_only=None,
    law_uses_q=False,
    strict_up_to=0.0,
  ),
  from_target(
    top_k,
    name='top_k',
    equation='pi = norm(p on its lam likeliest tokens)',
    reference='Fan et al. 2018, arXiv 1805.04833',
    strict=float('inf'),
    drafter_only=None,
    law_uses_q=False,
  ),
  from_target(
    eta,
    name='eta',
    equation='pi = norm(p where p >= min(lam, sqrt(lam) exp(-H(p))))',
    reference='Hewitt et al. 2022, arXiv 2210.15191',
    strict=0.0,
    drafter_only=None,
    law_uses_q=False,
    strict_up_to=0.0,
  ),
)
