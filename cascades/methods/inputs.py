"""Finds the inputs that a method reads, to refuse options without effect."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from cascades.methods.method import Distributions, Method

# Enough tokens to trace any rule.
_SIZE = 4
_NAMES = (*Distributions._fields, 'lenience')


@functools.cache
def used(method: Method) -> frozenset[str]:
  """Names the inputs that a method's functions read."""
  fns = method.acceptance, method.residual, method.law, method.rule
  inputs: set[str] = set()
  for fn in fns:
    if fn is not None:
      names, _ = _traced(fn)
      inputs |= names
  return frozenset(inputs)


@functools.cache
def has_verifier_law(method: Method) -> bool:
  """Returns True if a method's law is `p` itself at every lenience."""
  _, outputs = _traced(method.law)
  return outputs == ('p',)


def _traced(fn) -> tuple[set[str], tuple[str | None, ...]]:
  """Names the inputs that a function reads, and those that it returns."""
  row: Any = jax.ShapeDtypeStruct((_SIZE,), jnp.float32)
  lenience = jax.ShapeDtypeStruct((), jnp.float32)
  try:
    jaxpr = jax.make_jaxpr(fn)(Distributions(*[row] * 5), lenience).jaxpr
  # A user's function may fail in any way; the error appears when it compiles.
  except Exception:
    return {*_NAMES}, ()
  names = dict(zip(map(id, jaxpr.invars), _NAMES, strict=True))
  variables = [x for eqn in jaxpr.eqns for x in eqn.invars] + jaxpr.outvars
  inputs = {names[id(x)] for x in variables if id(x) in names}
  return inputs, tuple(names.get(id(x)) for x in jaxpr.outvars)
