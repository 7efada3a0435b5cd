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
  declares,
  from_target,
)

METHODS: list[Method] = []
TRUNCATIONS: list[Method] = []
_baseline = declares(
  METHODS, from_target, strict=None, drafter_only=0.0, has_lenience=False
)
_truncation = declares(
  TRUNCATIONS,
  from_target,
  strict=0.0,
  strict_up_to=0.0,
  drafter_only=None,
  law_uses_q=False,
)


@_baseline('pi = q', 'baseline')
def drafter_only(d: Distributions, lenience: Lenience) -> Probs:
  return d.q


METHODS.append(
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
    has_lenience=False,
    reads_gates=False,
  )
)


@_baseline('pi = q, read by the verifier all the same', 'baseline')
def always_accept(d: Distributions, lenience: Lenience) -> Probs:
  return d.q


@_truncation(
  'pi = norm(p where p >= lam mp)', 'Nguyen et al. 2024, arXiv 2407.01082'
)
def min_p(d: Distributions, lenience: Lenience) -> Probs:
  return processing.truncate(d.p, min_p=jnp.clip(lenience, 0, 1))


@_truncation(
  'pi = norm(p on the fewest tokens of mass 1 - lam)',
  'Holtzman et al. 2020, arXiv 1904.09751',
)
def top_p(d: Distributions, lenience: Lenience) -> Probs:
  return processing.truncate(d.p, top_p=jnp.clip(1 - lenience, 0, 1))


@_truncation(
  'pi = norm(p on its lam likeliest tokens)',
  'Fan et al. 2018, arXiv 1805.04833',
  strict=float('inf'),
  strict_up_to=None,
)
def top_k(d: Distributions, lenience: Lenience) -> Probs:
  # With all ties of the last token.
  k = jnp.clip(lenience, 1, d.p.shape[-1]).astype(jnp.int32)
  return processing.truncate(d.p, top_k=k)


@_truncation(
  'pi = norm(p where p >= min(lam, sqrt(lam) exp(-H(p))))',
  'Hewitt et al. 2022, arXiv 2210.15191',
)
def eta(d: Distributions, lenience: Lenience) -> Probs:
  return processing.truncate(d.p, eta=jnp.maximum(lenience, 0))
