"""Caps: tokens that a method may make likelier than the verifier does.

A lenience bounds how far a law may be from p at a position; a cap also bounds
the tokens that may gain probability. With C the tokens in the cap and pi the
law of any method,

  m(v) = pi(v) for v in C, min(pi(v), p(v)) elsewhere
  law  = m + (1 - sum m) norm(max(0, p - m)).

So no token outside of the cap is likelier than under the verifier, and the law
is pi if pi respects the cap. TensorRT-LLM's relaxed acceptance has two caps:
the `relaxed_topk` likeliest tokens, and those with p(v) >= max p -
`relaxed_delta` (unverified: from a description).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool

from cascades.methods import Method, caps, from_target, normalize
from cascades.methods.method import Probs
from cascades.methods.processing import IntScalar, RealScalar


@struct.dataclass
class Cap:
  """A cap of the verifier's likely tokens; a pytree of traced numbers.

  Attributes:
    top: Number of the likeliest tokens, plus all ties of the last; None
      disables this limit.
    delta: Largest difference from the largest probability; None disables this
      limit.
  """

  top: IntScalar | None = None
  delta: RealScalar | None = None

  def inside(self, p: Probs) -> Bool[Array, 'V']:
    """Returns True for the tokens in the cap, given the verifier's gate p."""
    largest = p.max()
    inside = jnp.ones(p.shape, bool)
    if self.delta is not None:
      inside = p >= largest - self.delta
    top = self.top
    if top is not None:
      # A few plain reductions: a sort of a large vocabulary costs far more.
      # The second condition ends the loop if a broken model returns nan.
      threshold = jax.lax.while_loop(
        lambda x: ((p >= x).sum() < top) & (x > -jnp.inf),
        lambda x: jnp.where(p < x, p, -jnp.inf).max(),
        largest,
      )
      inside &= p >= threshold
    return inside


def parse(spec: str) -> Cap:
  """Parses a cap."""
  pairs = [part.split(':') for part in spec.split(' ')]
  numbers = dict(pairs)
  if len(numbers) < len(pairs) or not numbers.keys() <= {'top', 'delta'}:
    raise ValueError
  top, delta = numbers.get('top'), numbers.get('delta')
  if top is not None and not 1 <= int(top) < 2**31:
    raise ValueError
  if delta is not None and not 0 <= float(delta) <= 1:
    raise ValueError
  return Cap(
    None if top is None else np.int32(int(top)),
    None if delta is None else np.float32(float(delta)),
  )


# Cached, because programs are compiled for the method object.
@functools.cache
def capped(method: Method) -> Method:
  """Returns the method whose law respects the cap in its distributions.

  `Distributions.cap` must not be None.
  """

  def law(d, lenience):
    pi = method.law(d, lenience)
    capped_pi = jnp.where(d.cap, pi, jnp.minimum(pi, d.p))
    # Exactly 0 if the cap changes nothing: then the law is pi to the last bit.
    excess = (pi - capped_pi).sum(-1)
    return capped_pi + excess * normalize(jnp.maximum(0, d.p - capped_pi), d.p)

  deferral_rule: Any = method.rule

  def rule(d, lenience):
    return deferral_rule(d, lenience) | ~d.cap

  return dataclasses.replace(
    from_target(
      law,
      name=method.name,
      equation=f'{method.equation}; at most p outside of the cap',
      reference=method.reference,
      strict=method.strict,
      strict_up_to=method.strict_up_to,
      drafter_only=None,
      rule=method.rule and rule,
    ),
    law_uses_q=method.law_uses_q,
    identity=method.identity,
  )


# Both limits may be given: 'top:3 delta:0.1'.
TOP = DELTA = caps.Kind(
  patterns=('top:3', 'delta:0.1', 'top:3 delta:0.1'),
  values='a count of 1 or more, and a delta from 0 to 1',
  parse=parse,
  wrap=capped,
)
