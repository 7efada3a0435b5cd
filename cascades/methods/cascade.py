"""Speculative cascades: the deferral rules of the paper, in its order.

Narasimhan et al., "Faster Cascades via Speculative Decoding", ICLR 2025, arXiv
2405.19261. A rule returns True to defer to the verifier. Rules read `q_gate`
and `p_gate`; `from_rule` makes the target from q and p.
"""

import jax.numpy as jnp

from cascades.methods.method import (
  BELOW_ZERO,
  Distributions,
  Lenience,
  from_rule,
  total_variation,
)


def chow(d: Distributions, lenience: Lenience):
  """Defers if mq < 1 - lam, eq. (2): the drafter is not confident."""
  return d.q_gate.max(-1) < 1 - lenience


def diff(d: Distributions, lenience: Lenience):
  """Defers if mq < mp - lam, eq. (5)."""
  return d.q_gate.max(-1) < d.p_gate.max(-1) - lenience


def opt(d: Distributions, lenience: Lenience):
  """Defers if mq < mp - lam * TV(p, q), eq. (10).

  The larger TV(p, q), the likelier a rejection: hence the minus sign.
  """
  cost = lenience * total_variation(d.p, d.q)
  # An infinite lenience decides alone; multiplied by 0 it would be nan.
  cost = jnp.where(jnp.isinf(lenience), lenience, cost)
  return d.q_gate.max(-1) < d.p_gate.max(-1) - cost


def token_v1(d: Distributions, lenience: Lenience):
  """Defers tokens with q(v) < mp - lam, eq. (13)."""
  return d.q_gate < d.p_gate.max(-1) - lenience


def token_v2(d: Distributions, lenience: Lenience):
  """Defers tokens with p(v) < mp - lam, eq. (14)."""
  return d.p_gate < d.p_gate.max(-1) - lenience


def token_v3(d: Distributions, lenience: Lenience):
  """Defers tokens with p(v) < (1 - lam) * mp, eq. (15)."""
  return d.p_gate < (1 - lenience) * d.p_gate.max(-1)


METHODS = tuple(
  from_rule(
    rule,
    name=rule.__name__,
    equation=equation,
    reference='Narasimhan et al. 2025, arXiv 2405.19261',
    strict=strict,
    drafter_only=drafter_only,
    strict_up_to=strict_up_to,
  )
  for rule, equation, strict, drafter_only, strict_up_to in (
    (chow, 'defer if mq < 1 - lam', -1.0, 1.0, BELOW_ZERO),
    (diff, 'defer if mq < mp - lam', -1.0, 1.0, -1.0),
    (opt, 'defer if mq < mp - lam TV(p, q)', -float('inf'), float('inf'), None),
    (token_v1, 'defer v if q(v) < mp - lam', -1.0, 1.0, -1.0),
    # Strict at any negative lenience; at 0 the verifier's argmax is kept.
    (token_v2, 'defer v if p(v) < mp - lam', -1.0, 1.0, BELOW_ZERO),
    (token_v3, 'defer v if p(v) < (1 - lam) mp', -1.0, 1.0, BELOW_ZERO),
  )
)
