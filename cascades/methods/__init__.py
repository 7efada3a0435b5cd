"""Methods: the acceptance of drafts, and the residual of a rejection.

`method.py` defines a method; `cascade.py` has the deferral rules of the paper
(arXiv 2405.19261), `relaxed.py` others, `engines.py` those of engines;
`processing.py` computes distributions from logits. To add a method, write a
function below its decorator in one of them, or call `register` from a notebook.
"""

import copyreg

import jax
import jax.numpy as jnp

from cascades.arguments import Registry
from cascades.methods import cascade, engines, relaxed
from cascades.methods.method import (
  Distributions,
  Method,
  from_rule,
  from_target,
  law_of,
  mixture,
  normalize,
  ratio,
  total_variation,
)

__all__ = (
  'METHODS Distributions Method from_rule from_target'
  ' get_acceptance_residual_fns get_method law_of mixture normalize ratio'
  ' register total_variation'
).split()

# Names that the paper's one-token notebook uses.
ALIASES = {f'cascade_{name}': name for name in ('chow', 'diff', 'opt')}
ALIASES |= {f'cascade_tokenV{i}': f'token_v{i}' for i in (1, 2, 3)}

METHODS: Registry[Method] = Registry('method', Method)
for _method in (*cascade.METHODS, *relaxed.METHODS, *engines.METHODS):
  METHODS.register(_method.name, _method, builtin=True)


def register(method: Method) -> Method:
  """Adds a method under its name, so that every tool can use it.

  Raises:
    ValueError: Another method has the name.
  """
  return METHODS.register(method.name, method)


def get_method(method: str | Method) -> Method:
  """Returns the method of a name or an alias; a `Method` as it is."""
  if isinstance(method, Method):
    return method
  entry = METHODS.get(method) or engines.find_method(method)
  return entry or METHODS[ALIASES.get(method, method)]


def is_builtin(method: Method) -> bool:
  """Returns True for the library's own methods, as they were registered."""
  name = method.name
  return METHODS.is_builtin(name) and METHODS[name] == method


def _by_name(method: Method) -> str | tuple:
  """Pickles a registered method as its name: a copy would compile anew."""
  if method in (METHODS.get(method.name), engines.find_method(method.name)):
    return get_method, (method.name,)
  return method.__reduce_ex__(4)


copyreg.pickle(Method, _by_name)


def get_acceptance_residual_fns(method: str | Method, lenience: float):
  """Returns acceptance and residual as the paper's notebook calls them.

  Args:
    method: A `Method`, or a name of the notebook or of this library.
    lenience: The notebook's `alpha`.

  Returns:
    Two functions of the notebook's probs_small, probs_large,
    probs_small_unscaled, probs_large_unscaled, shapes [B, 1, V], and
    token_small, [B, 1]. The first gives the probability [B, 1] of keeping
    `token_small`, the second the distribution [B, 1, V] to sample from
    otherwise, normalized unlike the notebook's. The notebook also divides by
    max(q, 1e-10), which accepts rarer tokens too seldom; here the divisor is q.

  Raises:
    ValueError: No such method.
  """
  method, lam = get_method(method), jnp.asarray(lenience)

  def at_positions(fn, *probs):
    def at_position(*probs):
      return fn(Distributions(*probs), lam)

    return jax.vmap(jax.vmap(at_position))(*probs)

  def acceptance(q, p, q_gate, p_gate, token):
    probs = at_positions(method.acceptance, q, p, q_gate, p_gate)
    return jnp.take_along_axis(probs, token[..., None], -1)[..., 0]

  def residual(q, p, q_gate, p_gate, token):
    return at_positions(method.residual, q, p, q_gate, p_gate)

  return acceptance, residual
