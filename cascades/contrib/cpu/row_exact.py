"""Functions whose results for a row do not depend on other rows.

Compilers order sums, contract products and sums, and choose kernels by the
shape of the whole batch, so that the last bit of a row depends on the number of
rows. Rounding to eight bits makes whole steps of such bits: speculative
decoding would no longer emit what the verifier emits alone.

`row_exact` evaluates what JAX traced operation by operation, since gemma writes
norms and attention anew in each family, and replaces operations whose last bit
depends on the shape (each was found by comparing a Gemma 3 at batches of 1 to
64 and blocks of 1 to 40 tokens, to the bit):

  sums of products  A product is rounded before it is added: no contraction.
  sums              Pairs of neighbours are added, then pairs of these sums, so
                    that zeros at the end change nothing.
  quotients         Products with a reciprocal, which the compiler would make
                    of quotients with few denominators only.
  1 / sqrt(x)       A square root and a reciprocal, each rounded correctly: the
                    vectorized approximation differs from the scalar one.
  exp, tanh ...     Functions of one number are compiled by themselves.
  float products    Sums of products in a fixed order, in the place of kernels
                    that are chosen by the number of rows.

Everything else is exact in any order: one operation on each number, maxima,
and integers.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float, PyTree

# Numbers of a sum that are added side by side: the floats of a CPU's vector.
_LANES = 16
_FUNCTIONS = frozenset(
  'cos erf erf_inv exp exp2 expm1 log log1p pow sin sqrt tanh'.split()
)
# A product that is added may be rounded once, as if the sum were exact.
_SUMS = frozenset('add add_any sub'.split())
# Operations that stand for a function.
_CALLS = frozenset('jit pjit closed_call custom_jvp_call checkpoint'.split())

_barrier = jax.lax.optimization_barrier


def row_exact(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """Returns a function whose results are equal to the bit in any batch.

  It may be applied inside `jit` and `vmap`.
  """

  @functools.wraps(function)
  def exact(*args):
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    out = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args), {})
    return jax.tree.unflatten(jax.tree.structure(shapes), out)

  return exact


def _evaluate(
  jaxpr: Any,
  consts: Sequence[Any],
  args: Sequence[Any],
  results: dict[Any, tuple[list[Any], Sequence[Any]]],
) -> list[Any]:
  """Evaluates a jaxpr, with exact operations in the place of others.

  Equal operations on equal operands, such as the angles of each layer's
  positions, are evaluated once: XLA does not merge what stands between
  barriers. `results` has operands too, so that their ids stay theirs.
  """
  names = *jaxpr.constvars, *jaxpr.invars
  values: dict[Any, Any] = dict(zip(names, (*consts, *args), strict=True))

  def read(atom):
    return atom.val if isinstance(atom, core.Literal) else values[atom]

  for eqn in jaxpr.eqns:
    operands = [read(atom) for atom in eqn.invars]
    inner = _inner_jaxpr(eqn)
    if inner is not None:
      # A jaxpr is closed over constants, or has none.
      body, closed = (
        getattr(inner, 'jaxpr', inner),
        getattr(inner, 'consts', ()),
      )
      out = _evaluate(body, closed, operands, results)
    else:
      ids = tuple(
        (x.val, str(x.aval)) if isinstance(x, core.Literal) else id(operand)
        for x, operand in zip(eqn.invars, operands, strict=True)
      )
      key = eqn.primitive, ids, tuple(sorted(eqn.params.items()))
      try:
        _, out = results[key]
      except (KeyError, TypeError) as error:
        out = _operate(eqn, operands)
        # A TypeError is that of a parameter that cannot be compared.
        if isinstance(error, KeyError):
          results[key] = operands, out
    values.update(zip(eqn.outvars, out, strict=True))
  return [read(atom) for atom in jaxpr.outvars]


def _inner_jaxpr(eqn: Any) -> Any:
  """Returns the jaxpr of an operation that stands for a function, or None.

  A function with a `vmap` of its own, such as a product in eight bits, is kept,
  unless it multiplies floats.
  """
  name, params = eqn.primitive.name, eqn.params
  if name in _CALLS:
    return params.get('jaxpr') or params['call_jaxpr']
  if name == 'custom_vmap_call':
    call = params['call']
    products = (x for x in call.jaxpr.eqns if x.primitive.name == 'dot_general')
    return call if any(map(_is_float, products)) else None
  return None


def _is_float(eqn: Any) -> bool:
  return jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)


def _operate(eqn: Any, operands: list[Any]) -> Sequence[Any]:
  name, params = eqn.primitive.name, eqn.params
  if _is_float(eqn):
    if name == 'reduce_sum':
      return [_sum(operands[0], params['axes'])]
    if name == 'div':
      x, denominator = operands
      return [x * _reciprocal(denominator).astype(x.dtype)]
    if name == 'rsqrt':
      return [_reciprocal(jnp.sqrt(operands[0]))]
    if name == 'logistic':
      return [_reciprocal(1 + _barrier(jnp.exp(_barrier(-operands[0]))))]
    if name == 'dot_general':
      return [_dot(operands[0], operands[1], params)]
    if name in _FUNCTIONS or name in _SUMS:
      operands = [x if jnp.ndim(x) == 0 else _barrier(x) for x in operands]
  primitive: Any = eqn.primitive
  functions: Sequence[Any] = ()
  bound: Any = primitive.get_bind_params(params)
  if isinstance(bound, tuple):
    # JAX before 0.12 takes functions as operands.
    functions, bound = bound
  out = primitive.bind(*functions, *operands, **bound)
  out = list(out) if primitive.multiple_results else [out]
  return _barrier(out) if _is_float(eqn) and name in _FUNCTIONS else out


def _reciprocal(x: Any) -> Any:
  """Returns 1 / x, rounded correctly."""
  is_array = isinstance(x, jax.Array)
  return _barrier(1 / _barrier(x)) if is_array else 1 / np.float32(x)


def _sum(x: Array, axes: Sequence[int]) -> Array:
  """Returns sums, whose order depends on the size of the axes alone."""
  x = jnp.moveaxis(_barrier(x), axes, range(-len(axes), 0))
  x = x.reshape(*x.shape[: x.ndim - len(axes)], -1)
  x = _pad(x, -1, _LANES)
  return _add_lanes(_add_pairs(x.reshape(*x.shape[:-1], -1, _LANES), -2))


def _pad(x: Array, axis: int, multiple: int) -> Array:
  """Appends zeros until the size of an axis is a multiple."""
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, -x.shape[axis] % multiple)
  return jnp.pad(x, widths) if widths[axis][1] else x


def _dot(x: Array, y: Array, params: dict[str, Any]) -> Array:
  """Returns `jax.lax.dot_general` of floats, by sums in a fixed order."""
  summed, batch = params['dimension_numbers']
  dtype = params['preferred_element_type'] or jnp.result_type(x, y)
  # A sum of many products has few bits left in bfloat16.
  sum_dtype = jnp.promote_types(dtype, jnp.float32)
  free = [
    [i for i in range(z.ndim) if i not in (*summed[k], *batch[k])]
    for k, z in enumerate((x, y))
  ]
  # A CPU adds vectors along the last axis of an operand that is not summed
  # over it, else along the last axis of both.
  is_free_last = [free[k][-1:] == [z.ndim - 1] for k, z in enumerate((x, y))]
  side = 0 if is_free_last[0] else 1
  matrices = []
  for k, z in enumerate((x, y)):
    groups = [batch[k], free[k], summed[k]]
    if k == side and is_free_last[side]:
      groups = [batch[k], summed[k], free[k]]
    shape = [math.prod(z.shape[i] for i in group) for group in groups]
    z = z.astype(sum_dtype).transpose([i for group in groups for i in group])
    matrices.append(z.reshape(shape))
  multiply = _multiply_wide if is_free_last[side] else _multiply
  out = multiply(matrices[1 - side], matrices[side]).astype(dtype)
  if side == 0:
    out = out.swapaxes(-1, -2)
  sizes = [x.shape[i] for i in (*batch[0], *free[0])]
  return out.reshape(*sizes, *(y.shape[i] for i in free[1]))


def _multiply(
  x: Float[Array, 'B M K'], y: Float[Array, 'B N K']
) -> Float[Array, 'B M N']:
  """Adds every sixteenth product in each of 16 lanes, then the lanes."""
  x, y = (_pad(z, -1, _LANES) for z in (x, y))
  lanes: Any = 0
  for i in range(0, x.shape[-1], _LANES):
    part = slice(i, i + _LANES)
    lanes = lanes + x[:, :, None, part] * y[:, None, :, part]
  return _add_lanes(_barrier(lanes))


def _multiply_wide(
  x: Float[Array, 'B M K'], y: Float[Array, 'B K N']
) -> Float[Array, 'B M N']:
  """Adds groups of 16 products, then pairs of groups."""
  x, y = _pad(x, -1, _LANES), _pad(y, -2, _LANES)
  x = x.reshape(*x.shape[:-1], -1, _LANES)
  y = y.reshape(len(y), -1, _LANES, y.shape[-1])
  groups: Any = 0
  for i in range(_LANES):
    groups = groups + x[:, :, :, i, None] * y[:, None, :, i]
  return _add_pairs(_barrier(groups), -2)


def _add_lanes(x: Array) -> Array:
  """Adds the halves of the last axis, a power of two, until one is left."""
  while (half := x.shape[-1] // 2) > 0:
    x = x[..., :half] + x[..., half:]
  return _barrier(x[..., 0])


def _add_pairs(x: Array, axis: int) -> Array:
  """Adds neighbours along an axis until one is left: zeros change nothing."""
  while x.shape[axis] > 1:
    x = _pad(x, axis, 2)
    x, y = (
      jax.lax.slice_in_dim(x, i, None, stride=2, axis=axis) for i in range(2)
    )
    x = x + y
  return _barrier(x.squeeze(axis))
