"""The registry: every method by its name, and the notebook's interface."""

import copyreg
import difflib

import jax
import jax.numpy as jnp

from cascades import arguments
from cascades.methods import baselines, cascade, learned, relaxed
from cascades.methods.method import Distributions, Method

METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
  """Adds a method under its name, so that every tool can be asked for it.

  Raises:
    ValueError: Another method has the name.
  """
  if METHODS.get(method.name, method) is not method:
    raise ValueError(
      f'method: the name {method.name!r} is taken; choose another.'
    )
  METHODS[method.name] = method
  return method


for _method in (
  *baselines.METHODS,
  *cascade.METHODS,
  *learned.METHODS,
  *relaxed.METHODS,
  *baselines.TRUNCATIONS,
):
  register(_method)

# What the library registers; others come from outside of it.
BUILTIN = frozenset(METHODS.values())

# Names that the paper's one-token notebook uses.
ALIASES = {
  'cascade_chow': 'chow',
  'cascade_diff': 'diff',
  'cascade_opt': 'opt',
  'cascade_tokenV1': 'token_v1',
  'cascade_tokenV2': 'token_v2',
  'cascade_tokenV3': 'token_v3',
}


def get_method(method: str | Method, option: str = 'method') -> Method:
  """The method of a name, an alias of it, or the method itself.

  Args:
    method: One of them; 'learned:' and a folder names the head that lies there.
    option: Names the argument in errors.

  Raises:
    ValueError: No such method; names the nearest and the list.
  """
  if isinstance(method, Method):
    return method
  if isinstance(method, str) and method.startswith(learned.PREFIX):
    named = method.removeprefix(learned.PREFIX)
    bundled = named == learned.BUNDLED
    if bundled:
      return METHODS[learned.NAME]
    try:
      return learned.load(named)
    except ValueError as error:
      said = str(error).removeprefix('method')
      raise ValueError(f'{option}{said}') from None
  name = ALIASES.get(method, method) if isinstance(method, str) else None
  if name in METHODS:
    return METHODS[name]
  # An integer of thousands of digits has no text, which is no near miss.
  text = method if isinstance(method, str) else ''
  near = difflib.get_close_matches(text, [*METHODS, *ALIASES], 1, 0.0)
  raise ValueError(
    f'{option}: {arguments.shown(method)} is not known; did you mean'
    f' {near[0]!r}? There are {", ".join(METHODS)}.'
  )


def _by_name(method: Method) -> tuple:
  """How a method goes to another process: if it is registered, as its name.

  What stands there under the name is what that process has compiled; made of
  its functions once more it would be another method each time.
  """
  on_disk = method.name.startswith(learned.PREFIX)
  if on_disk or METHODS.get(method.name) is method:
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
