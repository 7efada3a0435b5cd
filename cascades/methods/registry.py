"""The registry: every method by its name, and the notebook's interface."""

import copyreg

import jax
import jax.numpy as jnp

from cascades import arguments
from cascades.methods import baselines, cascade, relaxed
from cascades.methods.method import Distributions, Method
from cascades.registries import Registry, split

# Names that the paper's one-token notebook uses.
ALIASES = {
  'cascade_chow': 'chow',
  'cascade_diff': 'diff',
  'cascade_opt': 'opt',
  'cascade_tokenV1': 'token_v1',
  'cascade_tokenV2': 'token_v2',
  'cascade_tokenV3': 'token_v3',
}

METHODS: Registry[Method] = Registry('method', Method, ALIASES)
for _method in (
  *baselines.METHODS,
  *cascade.METHODS,
  *relaxed.METHODS,
  *baselines.TRUNCATIONS,
):
  METHODS.register(_method.name, _method, builtin=True)


def register(method: Method) -> Method:
  """Adds a method under its name, so that every tool can be asked for it.

  Raises:
    ValueError: Another method has the name.
  """
  return METHODS.register(method.name, method)


def get_method(method: str | Method, option: str = 'method') -> Method:
  """Returns the method of a name, an alias of it, or the method itself.

  Args:
    method: One of them. A name may have an argument where its method takes
      one: 'learned:' and a folder names the rule that lies there.
    option: Names the argument in errors.

  Raises:
    ValueError: No such method; names the nearest and the list.
  """
  if isinstance(method, Method):
    return method
  found, argument = METHODS.find(method, option)
  if not argument:
    return found
  if found.load is None:
    raise ValueError(
      f'{option}: {found.name!r} takes no argument, and'
      f' {arguments.quote(argument)} is given; leave out the colon and what'
      ' follows it.'
    )
  try:
    return found.load(argument)
  except ValueError as error:
    text = str(error).removeprefix('method')
    raise ValueError(f'{option}{text}') from None


def is_builtin(method: Method) -> bool:
  """Whether a method is the library's own, as it was registered."""
  name, argument = split(method.name)
  if not METHODS.is_builtin(name):
    return False
  own = METHODS[name]
  return own == method or bool(argument and own.load and method.identity)


def _by_name(method: Method) -> tuple:
  """How a method goes to another process: if it is registered, as its name.

  What stands there under the name is what that process has compiled; made of
  its functions once more it would be another method each time.
  """
  name, argument = split(method.name)
  if name in METHODS:
    own = METHODS[name]
    if own is method or (argument and own.load):
      return get_method, (method.name,)
  return method.__reduce_ex__(4)


copyreg.pickle(Method, _by_name)


def get_acceptance_residual_fns(method: str | Method, lenience: float):
  """The notebook's interface: acceptance and residual of four batched inputs.

  Args:
    method: A name, the notebook's or ours.
    lenience: The notebook's `alpha`.

  Returns:
    Two functions of (probs_small, probs_large, probs_small_unscaled,
    probs_large_unscaled, token_small), shapes [B, 1, V] (four times) and
    [B, 1]. The first gives the probability [B, 1] of keeping `token_small`,
    the second the distribution [B, 1, V] to sample from otherwise. Unlike the
    notebook's, it is normalised. The notebook also floors q at 1e-10 in its
    quotient, which accepts rarer tokens too seldom; here nothing is floored.

  Raises:
    ValueError: No such method.
  """
  method = get_method(method)

  def over_positions(fn):
    def one(q, p, q_gate, p_gate):
      return fn(Distributions(q, p, q_gate, p_gate), jnp.asarray(lenience))

    return jax.vmap(jax.vmap(one))

  def acceptance(
    probs_small,
    probs_large,
    probs_small_unscaled,
    probs_large_unscaled,
    token_small,
  ):
    kept = over_positions(method.acceptance)(
      probs_small, probs_large, probs_small_unscaled, probs_large_unscaled
    )
    return jnp.take_along_axis(kept, token_small[..., None], -1)[..., 0]

  def residual(
    probs_small,
    probs_large,
    probs_small_unscaled,
    probs_large_unscaled,
    token_small,
  ):
    del token_small
    return over_positions(method.residual)(
      probs_small, probs_large, probs_small_unscaled, probs_large_unscaled
    )

  return acceptance, residual
