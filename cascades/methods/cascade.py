"""One model alone, and the deferral rules of the paper, in its order.

Narasimhan et al., "Faster Cascades via Speculative Decoding", ICLR 2025, arXiv
2405.19261. A rule returns True to defer to the verifier. Rules read `q_gate`
and `p_gate`; `from_rule` makes the target from q and p.
"""

import jax.numpy as jnp

from cascades.methods.method import (
  BELOW_ZERO,
  Distributions,
  Lenience,
  Method,
  Probs,
  declares,
  from_rule,
  from_target,
  total_variation,
)

METHODS: list[Method] = []
_baseline = declares(
  METHODS, from_target, strict=None, drafter_only=0.0, has_lenience=False
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


_PAPER = 'Narasimhan et al. 2025, arXiv 2405.19261'
_rule = declares(METHODS, from_rule, strict=-1.0, drafter_only=1.0)


@_rule('defer if mq < 1 - lam', _PAPER, strict_up_to=BELOW_ZERO)
def chow(d: Distributions, lenience: Lenience):
  """Eq. (2): the drafter is not confident."""
  return d.q_gate.max(-1) < 1 - lenience


@_rule('defer if mq < mp - lam', _PAPER, strict_up_to=-1.0)
def diff(d: Distributions, lenience: Lenience):
  """Eq. (5)."""
  return d.q_gate.max(-1) < d.p_gate.max(-1) - lenience


_INF = float('inf')


@_rule(
  'defer if mq < mp - lam TV(p, q)', _PAPER, strict=-_INF, drafter_only=_INF
)
def opt(d: Distributions, lenience: Lenience):
  """Eq. (10): the larger TV(p, q), the likelier a rejection: hence minus."""
  cost = lenience * total_variation(d.p, d.q)
  # An infinite lenience decides alone; multiplied by 0 it would be nan.
  cost = jnp.where(jnp.isinf(lenience), lenience, cost)
  return d.q_gate.max(-1) < d.p_gate.max(-1) - cost


@_rule('defer v if q(v) < mp - lam', _PAPER, strict_up_to=-1.0)
def token_v1(d: Distributions, lenience: Lenience):
  """Eq. (13)."""
  return d.q_gate < d.p_gate.max(-1) - lenience


# Strict at any negative lenience; at 0 the verifier's argmax is kept.
@_rule('defer v if p(v) < mp - lam', _PAPER, strict_up_to=BELOW_ZERO)
def token_v2(d: Distributions, lenience: Lenience):
  """Eq. (14)."""
  return d.p_gate < d.p_gate.max(-1) - lenience


@_rule('defer v if p(v) < (1 - lam) mp', _PAPER, strict_up_to=BELOW_ZERO)
def token_v3(d: Distributions, lenience: Lenience):
  """Eq. (15)."""
  return d.p_gate < (1 - lenience) * d.p_gate.max(-1)
