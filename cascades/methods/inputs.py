"""Finds what a method looks at, for options that would have no effect on it."""

import functools

import jax
import jax.numpy as jnp

from cascades.methods.method import Distributions, Method

# As many tokens as any rule needs to be traced.
_SIZE = 4
_NAMES = (*Distributions._fields[:5], 'lenience')


@functools.cache
def used(method: Method) -> frozenset[str]:
  """Names the inputs that a method's functions look at.

  Returns:
    Of `Distributions` the fields `q`, `p`, `q_gate`, `p_gate` and `p_logits`,
    and 'lenience'; all of them where the functions cannot be traced.
  """
  fns = method.acceptance, method.residual, method.law, method.rule
  found: set[str] = set()
  for fn in fns:
    if fn is not None:
      names, _ = _traced(fn)
      found |= names
  return frozenset(found)


@functools.cache
def has_verifier_law(method: Method) -> bool:
  """True if a method's law is `p` itself, whatever the lenience."""
  _, outputs = _traced(method.law)
  return outputs == ('p',)


def _traced(fn) -> tuple[set[str], tuple[str | None, ...]]:
  """Names of the inputs that a function uses, and of those that it returns."""
  row = jax.ShapeDtypeStruct((_SIZE,), jnp.float32)
  lenience = jax.ShapeDtypeStruct((), jnp.float32)
  try:
    jaxpr = jax.make_jaxpr(fn)(Distributions(*[row] * 5), lenience).jaxpr
  # What a user wrote can fail in any way, and is shown where it is compiled.
  except Exception:
    return {*_NAMES}, ()
  names = dict(zip(map(id, jaxpr.invars), _NAMES, strict=True))
  variables = [x for eqn in jaxpr.eqns for x in eqn.invars] + jaxpr.outvars
  found = {names[id(x)] for x in variables if id(x) in names}
  return found, tuple(names.get(id(x)) for x in jaxpr.outvars)
