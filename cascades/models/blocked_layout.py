"""Matrices as a CPU reads them best: in panels of a few columns.

To decode is to multiply a few rows with matrices that no cache holds: a single
token in plain decoding, a block of drafts in speculative decoding. Such a
product takes what reading the matrix takes, if the matrix is read once and from
its first number to its last. Matrix products read it so if the columns that
they work on at a time lie together:

  [in, out]                        [out / 64, in, 64]

  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..
  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..

A panel's numbers are one piece of memory, and all panels are multiplied as a
batch. Reading five tokens takes no longer than reading one then, where it took
half as much again in rows of the whole matrix.

Weights of more axes are matrices too, once their axes are told apart: those
that are summed over (`in`), and those that are kept (`out`).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import meta
from jaxtyping import Array, Float

# Columns of a panel at the most: what the product's inner loop holds.
_WIDTH = 64
# A matrix of fewer numbers lies in a cache, and in one piece.
_SMALL = 2**15
# Blocks in one array of a table. Each block multiplies its own copy of the
# inputs, and many copies would not stay in a cache.
_PANELS = 128
# A single row goes another way on CPUs, which reads what lies in no cache more
# slowly than two rows are read; of bfloat16, ten times as slowly whatever lies
# where.
_LARGE = 2**16
# With more rows, what counts is arithmetic; for that, panels are in the way.
_MANY = 128


class AxisSplit(NamedTuple):
  """A weight's axes, told apart.

  Attributes:
    kept: Axes of what comes out of a product; the last is cut into panels.
    summed: Axes that a product sums over.
  """

  kept: tuple[int, ...]
  summed: tuple[int, ...]


def pack(
  x: Any, order: AxisSplit, put: Callable[[Any], Any] = lambda x: x
) -> Any:
  """A weight in panels.

  Args:
    x: An array of numpy's or of JAX's; a table may be what gives its rows.
    order: Of its axes.
    put: What becomes of each array that is made, before the next one is.

  Returns:
    [*kept axes but the last, panels, *summed axes, columns]; a tuple of such
    arrays, one after the other, where a table has many panels, or has columns
    that fill none: the last array is those. A small weight stays whole:
    [*summed axes, *kept axes].
  """
  if math.prod(x.shape) < _SMALL:
    return put(x[:].transpose(*order.summed, *order.kept))
  *batch, last = order.kept
  size = x.shape[last]
  columns = _columns(size)
  if batch or last:
    return put(_pack(x[:], order, columns))
  # Of a vocabulary that is a prime number, one panel is not full.
  columns = min(columns, _WIDTH)
  full = size - size % columns
  cuts = [*range(0, full, _PANELS * columns), full]
  if full < size:
    cuts.append(size)
  parts = [
    put(_pack(x[i:j], order, min(columns, j - i)))
    for i, j in itertools.pairwise(cuts)
  ]
  return tuple(parts) if len(parts) > 1 else parts[0]


def _pack(x: Any, order: AxisSplit, columns: int) -> Any:
  """A weight in panels of so many columns, in one array."""
  *batch, last = order.kept
  at = len(batch)
  x = x.transpose(*batch, last, *order.summed)
  x = x.reshape(*x.shape[:at], -1, columns, *x.shape[at + 1 :])
  return x.transpose(*range(at + 1), *range(at + 2, x.ndim), at + 1)


def _columns(kept: int) -> int:
  """Columns of a panel, which divide those that are kept."""
  fits = (w for w in range(_WIDTH, 0, -16) if kept % w == 0)
  return next(fits, kept)


def is_whole(parts: Any, order: AxisSplit) -> bool:
  """Whether a packed weight was too small for panels."""
  axes = len(order.kept) + len(order.summed)
  return not isinstance(parts, tuple) and np.ndim(parts) == axes


def unpack(parts: Any, order: AxisSplit) -> Any:
  """A weight as it was before it was packed."""
  if is_whole(parts, order):
    return parts.transpose(*np.argsort((*order.summed, *order.kept)))
  if isinstance(parts, tuple):
    each = [unpack(part, order) for part in parts]
    # Arrays stay where they are.
    join = np if isinstance(each[0], np.ndarray) else jnp
    return join.concatenate(each, order.kept[-1])
  at, end = len(order.kept) - 1, parts.ndim - 1
  x = parts.transpose(*range(at + 1), end, *range(at + 1, end))
  x = x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])
  return x.transpose(*np.argsort((*order.kept, *order.summed)))


class BlockedParam(struct.PyTreeNode, meta.AxisMetadata[Any]):
  """A packed weight among a module's parameters; flax takes it for an array.

  Attributes:
    parts: What `pack` gave.
    order: Of the array's axes.
  """

  parts: Any
  order: AxisSplit = struct.field(pytree_node=False)

  def unbox(self) -> 'BlockedWeight':
    """What the module is given."""
    return BlockedWeight(self.parts, self.order)

  def replace_boxed(self, value: Any) -> 'BlockedParam':
    """Another weight of the same order."""
    return self.replace(parts=value)

  def add_axis(self, index: int, params: dict[Any, Any]) -> 'BlockedParam':
    """Nothing is said of axes that flax adds."""
    raise NotImplementedError

  remove_axis = add_axis


class BlockedWeight:
  """A packed weight in the place of the array that it was.

  `dot` multiplies with it as it lies. Whatever else is done with it makes the
  array of it.

  Attributes:
    parts: What `pack` gave.
    order: Of the array's axes.
    shape: Of the array.
  """

  def __init__(self, parts: Any, order: AxisSplit):
    self.parts, self.order = parts, order
    self.shape = jax.eval_shape(lambda x: unpack(x, order), parts).shape

  @property
  def ndim(self) -> int:
    """Axes of the array."""
    return len(self.shape)

  @property
  def dtype(self) -> Any:
    """Of the array."""
    return jax.tree.leaves(self.parts)[0].dtype

  def __jax_array__(self) -> jax.Array:
    return unpack(self.parts, self.order)

  def __getitem__(self, index: Any) -> jax.Array:
    """Rows of a matrix whose columns are summed over: of a table.

    Args:
      index: Of rows, or a tuple that holds nothing else.
    """
    (tokens,) = index if isinstance(index, tuple) else (index,)
    parts = self.parts if isinstance(self.parts, tuple) else (self.parts,)
    if is_whole(parts[0], self.order):
      return jnp.moveaxis(parts[0][:, tokens], 0, -1)
    # Of every part, but there are few.
    rows, at = None, 0
    for part in parts:
      columns, here = part.shape[-1], tokens - at
      found = part[here // columns, :, here % columns]
      inside = (here >= 0)[..., None]
      rows = found if rows is None else jnp.where(inside, found, rows)
      at += _kept(part)
    return rows


def dot(
  x: Float[Array, '...'], weight: BlockedWeight, dtype: Any = None
) -> Array:
  """A product with a packed weight, read once for all rows.

  Under `vmap` the rows of all are multiplied together.

  Args:
    x: Any number of axes, then those that are summed over.
    weight: In panels.
    dtype: What the sums, which are float32, are rounded to; None for what x
      is. A CPU is slow to round many of them.

  Returns:
    [*rows, *kept].
  """
  order, summed = weight.order, len(weight.order.summed)
  kept = tuple(weight.shape[axis] for axis in order.kept)

  def product(x, parts):
    out = _product(x, parts, order, dtype or x.dtype)
    return out.reshape(len(x), *kept)

  run = jax.custom_batching.custom_vmap(product)

  @run.def_vmap
  def rule(size, batched, x, parts):
    of_parts = batched[1]
    if any(jax.tree.leaves(of_parts)):
      # Several sets of weights: nothing is shared.
      axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
      return jax.vmap(product, tuple(axes))(x, parts), True
    out = run(x.reshape(-1, *x.shape[2:]), parts)
    return out.reshape(size, -1, *kept), True

  at = x.ndim - summed
  rows = x.reshape(-1, *x.shape[at:])
  return run(rows, weight.parts).reshape(*x.shape[:at], *kept)


def _product(
  x: Float[Array, 'm ...'], parts: Any, order: AxisSplit, dtype: Any
) -> Array:
  """Rows by a packed weight, [m, ...]: its kept axes, flat or not."""
  m, summed = len(x), len(order.summed)
  if is_whole(parts, order) or m > _MANY:
    w = unpack(parts, order)
    axes = tuple(range(1, x.ndim)), order.summed
    return jnp.tensordot(x, w, axes, preferred_element_type=dtype)
  size = sum(part.size for part in jax.tree.leaves(parts))
  if m == 1 and (size >= _LARGE or x.dtype == jnp.bfloat16):
    x = jnp.pad(x, ((0, 1), *[(0, 0)] * summed))

  def one(part, x):
    batch = range(part.ndim - summed - 1)
    of_each = jnp.broadcast_to(x, (*part.shape[: len(batch)], *x.shape))
    inner = tuple(range(len(batch), len(batch) + summed))
    out = jax.lax.dot_general(
      of_each,
      part,
      ((tuple(i + 1 for i in inner), inner), (tuple(batch), tuple(batch))),
      preferred_element_type=dtype,
    )
    return jnp.moveaxis(out, len(batch), 0)[:m].reshape(m, -1)

  if not isinstance(parts, tuple):
    return one(parts, x)
  # One after the other, each into its place: nothing of all columns lies twice.
  # Barriers keep XLA from making all parts first, or a copy in the end; and
  # what stands there before is of no constant, which would be copied too.
  out = jnp.broadcast_to(
    x.ravel()[0].astype(dtype), (m, sum(map(_kept, parts)))
  )
  at = 0
  for part in parts:
    x, out = jax.lax.optimization_barrier((x, out))
    out = jax.lax.dynamic_update_slice(out, one(part, x), (0, at))
    at += _kept(part)
  return jax.lax.optimization_barrier(out)


def _kept(part: Array) -> int:
  """Columns of a part of a table."""
  return len(part) * part.shape[-1]
