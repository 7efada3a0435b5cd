"""Caps: which tokens a method may make likelier than the verifier does.

A rule bounds what it gives away at a place by a lenience; a cap says besides
which tokens it may give it to. With C the tokens inside of the cap and pi the
law of any method,

  m(v) = pi(v) for v in C, min(pi(v), p(v)) elsewhere
  law  = m + (1 - sum m) norm(max(0, p - m)),

so that no token outside is likelier than to the verifier, and where pi asks for
none the law is pi. TensorRT-LLM's relaxed acceptance has two caps, the
`relaxed_topk` likeliest tokens and those with p(v) >= max p - `relaxed_delta`
(unverified: as described elsewhere).
"""

import dataclasses
import functools

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
  """Tokens that are likely to the verifier; a pytree of traced numbers.

  Attributes:
    top: How many of the likeliest, with all that are as likely as the last;
      None for any number.
    delta: By how much they may be less likely than the likeliest; None for any.
  """

  top: IntScalar | None = None
  delta: RealScalar | None = None

  def inside(self, p: Probs) -> Bool[Array, 'V']:
    """Marks the tokens inside of the cap, given what a rule sees of p."""
    most = p.max()
    inside = jnp.ones(p.shape, bool)
    if self.delta is not None:
      inside = p >= most - self.delta
    if self.top is not None:
      # A few plain reductions: a sort of a large vocabulary costs far more.
      # The second condition ends it where a broken model says nan.
      least = jax.lax.while_loop(
        lambda least: ((p >= least).sum() < self.top) & (least > -jnp.inf),
        lambda least: jnp.where(p < least, p, -jnp.inf).max(),
        most,
      )
      inside &= p >= least
    return inside


def parse(spec: str) -> Cap:
  """Makes a cap of its text.

  Args:
    spec: 'top:3', 'delta:0.1' or 'top:3 delta:0.1', with numbers of one's own.

  Raises:
    ValueError: It is written in another way, or a number is out of its range.
  """
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


# The same object for the same method: it is what programs are compiled for.
@functools.cache
def capped(method: Method) -> Method:
  """A method whose law makes no token outside of a cap likelier than p does.

  The cap is `Distributions.cap`, which has to be there.
  """

  def law(d, lenience):
    pi = method.law(d, lenience)
    kept = jnp.where(d.cap, pi, jnp.minimum(pi, d.p))
    # Exactly 0 where nothing is cut: the law is pi to the last bit then.
    cut = (pi - kept).sum(-1)
    return kept + cut * normalize(jnp.maximum(0, d.p - kept), d.p)

  def rule(d, lenience):
    return method.rule(d, lenience) | ~d.cap

  return dataclasses.replace(
    from_target(
      law,
      name=method.name,
      equation=f'{method.equation}; at most p outside of the cap',
      reference=method.reference,
      strict=method.strict,
      drafter_only=None,
      rule=method.rule and rule,
    ),
    law_uses_q=method.law_uses_q,
    identity=method.identity,
  )


# The two go together: 'top:3 delta:0.1'.
TOP = DELTA = caps.Kind(
  patterns=('top:3', 'delta:0.1', 'top:3 delta:0.1'),
  says='a count of 1 or more, and a delta from 0 to 1',
  parse=parse,
  wrap=capped,
)
