"""Speculative cascades: the deferral rules of the paper, in its order.

Narasimhan et al., "Faster Cascades via Speculative Decoding", ICLR 2025, arXiv
2405.19261. A rule says True where the verifier takes over. Rules look at
`q_gate` and `p_gate`; `from_rule` makes the target from q and p.
"""

import jax.numpy as jnp

from cascades.methods.method import (
  Distributions,
  Lenience,
  from_rule,
  total_variation,
)


def chow(d: Distributions, lenience: Lenience):
  """Defer where the drafter is unsure: mq < 1 - lam, eq. (2)."""
  return d.q_gate.max(-1) < 1 - lenience


def diff(d: Distributions, lenience: Lenience):
  """Defer where the verifier is surer by more than lam, eq. (5)."""
  return d.q_gate.max(-1) < d.p_gate.max(-1) - lenience


def price(d: Distributions, lenience: Lenience):
  """What a deferral costs, in loss: lam * TV(p, q), Lemma 4."""
  cost = lenience * total_variation(d.p, d.q)
  # An infinite lenience decides alone: times no distance it would be nan.
  return jnp.where(jnp.isinf(lenience), lenience, cost)


def opt(d: Distributions, lenience: Lenience):
  """As Diff, lam weighed by what a deferral costs: lam * TV(p, q), eq. (10).

  The more the two disagree, the likelier a rejection: hence the minus sign.
  """
  return d.q_gate.max(-1) < d.p_gate.max(-1) - price(d, lenience)


def token_v1(d: Distributions, lenience: Lenience):
  """Defer tokens with q(v) < mp - lam, eq. (13)."""
  return d.q_gate < d.p_gate.max(-1) - lenience


def token_v2(d: Distributions, lenience: Lenience):
  """Defer tokens with p(v) < mp - lam, eq. (14)."""
  return d.p_gate < d.p_gate.max(-1) - lenience


def token_v3(d: Distributions, lenience: Lenience):
  """Defer tokens with p(v) < (1 - lam) * mp, eq. (15)."""
  return d.p_gate < (1 - lenience) * d.p_gate.max(-1)


_PAPER = 'Narasimhan et al. 2025, arXiv 2405.19261'

METHODS = (
  from_rule(
    chow,
    name='chow',
    equation='defer if mq < 1 - lam',
    reference=_PAPER,
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    diff,
    name='diff',
    equation='defer if mq < mp - lam',
    reference=_PAPER,
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    opt,
    name='opt',
    equation='defer if mq < mp - lam TV(p, q)',
    reference=_PAPER,
    strict=-float('inf'),
    drafter_only=float('inf'),
  ),
  from_rule(
    token_v1,
    name='token_v1',
    equation='defer v if q(v) < mp - lam',
    reference=_PAPER,
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    token_v2,
    name='token_v2',
    equation='defer v if p(v) < mp - lam',
    reference=_PAPER,
    # Any negative lenience; at 0 the verifier's favourite is still kept.
    strict=-1.0,
    drafter_only=1.0,
  ),
  from_rule(
    token_v3,
    name='token_v3',
    equation='defer v if p(v) < (1 - lam) mp',
    reference=_PAPER,
    # Any negative lenience; at 0 the verifier's favourite is still kept.
    strict=-1.0,
    drafter_only=1.0,
  ),
)
