"""Blocked layout of matrices, in which a CPU reads them fastest.

Decoding multiplies few rows with matrices that fit no cache: one row for a
token in plain decoding, a block of drafts in speculative decoding. Such a
product takes the time of reading the matrix, if the matrix is read once and
sequentially. Matrix products read it so if the columns that their inner loop
works on are contiguous:

  [in, out]                        [out / 64, in, 64]

  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..
  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..

Each block of columns is contiguous, and all blocks are multiplied as a batch.
Five tokens then take as long as one; without blocks, 1.5 times as long.

Weights of more axes are matrices too, once their axes are divided into those
that are summed over (`in`) and the free ones (`out`).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Most columns of a block: those that the product's inner loop holds.
_WIDTH = 64
# A matrix of fewer numbers fits a cache, and is not divided.
_SMALL = 2**15
# Blocks in one array of a table. Each block multiplies its own copy of the
# inputs, and many copies would not stay in a cache.
_ARRAY_BLOCKS = 128
# XLA on a CPU multiplies a single row by another path: it reads a matrix that
# fits no cache more slowly than for two rows, and in bfloat16 ten times as
# slowly for any matrix.
_LARGE = 2**16
# More rows than this are bound by arithmetic, which blocks slow down.
_MANY_ROWS = 128


class AxisSplit(NamedTuple):
  """The axes of a weight, divided for products."""

  free: tuple[int, ...]
  summed: tuple[int, ...]


def pack(
  x: Any, axes: AxisSplit, place: Callable[[Any], Any] = lambda x: x
) -> Any:
  """Divides a weight into blocks."""
  if math.prod(x.shape) < _SMALL:
    return place(x[:].transpose(*axes.summed, *axes.free))
  *batch, last = axes.free
  size = x.shape[last]
  columns = _block_columns(size)
  if batch or last:
    return place(_pack(x[:], axes, columns))
  # A vocabulary of a prime number of tokens leaves a block that is not full.
  columns = min(columns, _WIDTH)
  full = size - size % columns
  bounds = [*range(0, full, _ARRAY_BLOCKS * columns), full]
  if full < size:
    bounds.append(size)
  parts = [
    place(_pack(x[i:j], axes, min(columns, j - i)))
    for i, j in itertools.pairwise(bounds)
  ]
  return tuple(parts) if len(parts) > 1 else parts[0]


def _pack(x: Any, axes: AxisSplit, columns: int) -> Any:
  """Divides a weight into blocks of `columns` columns, in one array."""
  *batch, last = axes.free
  start = len(batch)
  x = x.transpose(*batch, last, *axes.summed)
  x = x.reshape(*x.shape[:start], -1, columns, *x.shape[start + 1 :])
  return x.transpose(*range(start + 1), *range(start + 2, x.ndim), start + 1)


def _block_columns(size: int) -> int:
  """Returns the columns of a block, a divisor of the size of the axis."""
  divisors = (w for w in range(_WIDTH, 0, -16) if size % w == 0)
  return next(divisors, size)


def is_undivided(parts: Any, axes: AxisSplit) -> bool:
  """Returns True if a packed weight was too small for blocks."""
  ndim = len(axes.free) + len(axes.summed)
  return not isinstance(parts, tuple) and np.ndim(parts) == ndim


def unpack(parts: Any, axes: AxisSplit) -> Any:
  """Returns a weight as it was before `pack`."""
  if is_undivided(parts, axes):
    return parts.transpose(*np.argsort((*axes.summed, *axes.free)))
  if isinstance(parts, tuple):
    arrays = [unpack(part, axes) for part in parts]
    # NumPy arrays stay on the host.
    library = np if isinstance(arrays[0], np.ndarray) else jnp
    return library.concatenate(arrays, axes.free[-1])
  start, end = len(axes.free) - 1, parts.ndim - 1
  x = parts.transpose(*range(start + 1), end, *range(start + 1, end))
  x = x.reshape(*x.shape[:start], -1, *x.shape[start + 2 :])
  return x.transpose(*np.argsort((*axes.free, *axes.summed)))


class BlockedWeight:
  """A packed weight in the place of its array.

  `dot` multiplies with the blocks. Any other operation unpacks the array.
  """

  def __init__(self, parts: Any, axes: AxisSplit):
    self.parts, self.axes = parts, axes
    self.shape = jax.eval_shape(lambda x: unpack(x, axes), parts).shape

  @property
  def ndim(self) -> int:
    """Number of axes of the array."""
    return len(self.shape)

  @property
  def dtype(self) -> Any:
    """Dtype of the array."""
    return jax.tree.leaves(self.parts)[0].dtype

  def __jax_array__(self) -> jax.Array:
    return unpack(self.parts, self.axes)

  def dot(self, x: Float[Array, '...'], dtype: Any = None) -> Array:
    """Returns a product; see the function `dot`."""
    return dot(x, self, dtype)

  def __getitem__(self, index: Any) -> jax.Array:
    """Returns rows of a table, a matrix whose columns are summed over."""
    (tokens,) = index if isinstance(index, tuple) else (index,)
    parts = self.parts if isinstance(self.parts, tuple) else (self.parts,)
    if is_undivided(parts[0], self.axes):
      return jnp.moveaxis(parts[0][:, tokens], 0, -1)
    # Reads a row of every part and selects one: there are few parts.
    rows, start = None, 0
    for part in parts:
      columns, local = part.shape[-1], tokens - start
      part_rows = part[local // columns, :, local % columns]
      inside = (local >= 0)[..., None]
      rows = part_rows if rows is None else jnp.where(inside, part_rows, rows)
      start += _num_columns(part)
    assert rows is not None
    return rows


def dot(
  x: Float[Array, '...'], weight: BlockedWeight, dtype: Any = None
) -> Array:
  """Returns a product with a packed weight, which is read once for all rows.

  Under `vmap`, the rows of all calls are multiplied together.
  """
  axes, ndim_summed = weight.axes, len(weight.axes.summed)
  free = tuple(weight.shape[axis] for axis in axes.free)

  def product(x, parts):
    out = _product(x, parts, axes, dtype or x.dtype)
    return out.reshape(len(x), *free)

  run = jax.custom_batching.custom_vmap(product)

  @run.def_vmap
  def rule(size, batched, x, parts):
    if any(jax.tree.leaves(batched[1])):
      # Each call has a weight of its own, so calls share no reading.
      in_axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched)
      return jax.vmap(product, tuple(in_axes))(x, parts), True
    out = run(x.reshape(-1, *x.shape[2:]), parts)
    return out.reshape(*x.shape[:2], *free), True

  split = x.ndim - ndim_summed
  rows = x.reshape(-1, *x.shape[split:])
  return run(rows, weight.parts).reshape(*x.shape[:split], *free)


def _product(
  x: Float[Array, 'm ...'], parts: Any, axes: AxisSplit, dtype: Any
) -> Array:
  """Multiplies rows with a packed weight."""
  m, ndim_summed = len(x), len(axes.summed)
  if is_undivided(parts, axes) or m > _MANY_ROWS:
    w = unpack(parts, axes)
    contracted = tuple(range(1, x.ndim)), axes.summed
    return jnp.tensordot(x, w, contracted, preferred_element_type=dtype)
  size = sum(part.size for part in jax.tree.leaves(parts))
  if m == 1 and (size >= _LARGE or x.dtype == jnp.bfloat16):
    x = jnp.pad(x, ((0, 1), *[(0, 0)] * ndim_summed))
  if not isinstance(parts, tuple):
    return _multiply_blocks(x, parts, axes, dtype)[:m].reshape(m, -1)
  # One part after the other, each written to its columns: no copy of all
  # columns is made. The barriers keep XLA from computing all parts first, and
  # from a copy at the end. The initial value is no constant, which XLA would
  # copy too.
  out = jnp.broadcast_to(
    x.ravel()[0].astype(dtype), (m, sum(map(_num_columns, parts)))
  )
  start = 0
  for part in parts:
    x, out = jax.lax.optimization_barrier((x, out))
    columns = _multiply_blocks(x, part, axes, dtype)[:m].reshape(m, -1)
    out = jax.lax.dynamic_update_slice(out, columns, (0, start))
    start += _num_columns(part)
  return jax.lax.optimization_barrier(out)


def _multiply_blocks(
  x: Array, part: Array, axes: AxisSplit, dtype: Any
) -> Array:
  """Multiplies rows with the blocks of one array, as a batch of products."""
  batch = range(part.ndim - len(axes.summed) - 1)
  copies = jnp.broadcast_to(x, (*part.shape[: len(batch)], *x.shape))
  summed = tuple(range(len(batch), len(batch) + len(axes.summed)))
  out = jax.lax.dot_general(
    copies,
    part,
    ((tuple(i + 1 for i in summed), summed), (tuple(batch), tuple(batch))),
    preferred_element_type=dtype,
  )
  return jnp.moveaxis(out, len(batch), 0)


def _num_columns(part: Array) -> int:
  """Returns the number of columns in an array of a table's blocks."""
  return len(part) * part.shape[-1]
