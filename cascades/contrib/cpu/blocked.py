"""Blocked layout of matrices, in which a CPU reads them fastest.

Decoding multiplies few rows with matrices that fit no cache. Such a product
takes the time of reading the matrix, if it is read once and sequentially, as
it is if the columns that the inner loop works on are contiguous:

  [in, out]                        [out / 64, in, 64]

  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..
  a a a ..  b b b ..  c c ..       a a a ..     b b b ..     c c ..

All blocks are multiplied as a batch. Five tokens then take as long as one;
without blocks, 1.5 times as long. Weights of more axes are matrices too, once
their axes are divided into summed (`in`) and free ones (`out`).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta
from jaxtyping import Array, Float, PyTree

from cascades.models.sharding import AxisSplit, is_packed

# Most columns of a block: those that the product's inner loop holds.
_WIDTH = 64
# A matrix of fewer numbers fits a cache, and is not divided.
_SMALL = 2**15
# Blocks in one array of a table. Each block multiplies its own copy of the
# inputs, and many copies would not stay in a cache.
_ARRAY_BLOCKS = 128
# XLA on a CPU multiplies one row more slowly than two, if the matrix fits no
# cache, and in bfloat16 ten times as slowly for any matrix.
_LARGE = 2**16
# More rows than this are bound by arithmetic, which blocks slow down.
_MANY_ROWS = 128


class PackedWeight:
  """A packed weight in the place of its array.

  `dot` multiplies with its parts, by `product`, of rows [M, summed axes] and
  parts. Any other operation unpacks the array.
  """

  shape: tuple[int, ...]
  dtype: Any
  unpack: Any
  product: Any
  rows: Any

  def __init__(self, parts: Any, axes: AxisSplit):
    self.parts, self.axes = parts, axes

  @staticmethod
  def axis(part: Any, axes: AxisSplit, axis: int, devices: int) -> int:
    """Returns the axis of a part that is divided, which it may lack."""
    del part, devices
    return (*axes.free, *axes.summed).index(axis)

  @property
  def ndim(self) -> int:
    """Number of axes of the array."""
    return len(self.shape)

  def __jax_array__(self) -> jax.Array:
    return self.unpack(self.parts, self.axes)

  def dot(self, x: Float[Array, '...'], dtype: Any = None) -> Array:
    """Returns a product with the weight, which is read once for all rows.

    Under `vmap`, the rows of all calls are multiplied together.
    """
    free = tuple(self.shape[axis] for axis in self.axes.free)

    def product(x, parts):
      out = self.product(x, parts, dtype or x.dtype)
      return out.reshape(len(x), *free)

    run = jax.custom_batching.custom_vmap(product)

    @run.def_vmap
    def rule(size, batched, x, parts):
      if any(jax.tree.leaves(batched[1])):
        # Each call has a weight of its own, so calls share no reading.
        in_axes = jax.tree.map(lambda y: 0 if y else None, tuple(batched))
        return jax.vmap(product, in_axes)(x, parts), True
      out = run(x.reshape(-1, *x.shape[2:]), parts)
      return out.reshape(*x.shape[:2], *free), True

    split = x.ndim - len(self.axes.summed)
    rows = x.reshape(-1, *x.shape[split:])
    return run(rows, self.parts).reshape(*x.shape[:split], *free)

  def einsum(self, equation: str, x: Array) -> Array:
    """Returns `jnp.einsum(equation, x, weight)`."""
    operands, out = equation.split('->')
    rows, letters = operands.split(',')
    free = ''.join(letters[axis] for axis in self.axes.free)
    rows = rows[: -len(self.axes.summed)]
    return jnp.einsum(f'{rows}{free}->{out}', self.dot(x))


# JAX flattens registered dataclasses in C++, and a model has hundreds of these.
@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['parts'],
  meta_fields=['axes', 'weight'],
)
@dataclasses.dataclass(frozen=True)
class PackedParam(meta.AxisMetadata[Any]):
  """A packed matrix among parameters, which flax unboxes to read it."""

  parts: Any
  axes: AxisSplit
  weight: type[PackedWeight]

  def unbox(self) -> PackedWeight:
    """Returns the weight that a module reads."""
    return self.weight(self.parts, self.axes)

  def rows(self, tokens: np.ndarray) -> 'PackedParam':
    """Returns a packed table of some rows."""
    return dataclasses.replace(self, parts=self.unbox().rows(tokens))

  def replace_boxed(self, *_: Any, **__: Any) -> Any:
    """Refuses changes, which no module makes."""
    raise NotImplementedError

  add_axis = remove_axis = replace_boxed


def map_packed(
  function: Callable[[PackedParam], Any], params: PyTree
) -> PyTree:
  """Applies a function to each packed matrix."""
  return jax.tree.map(
    lambda x: function(x) if is_packed(x) else x, params, is_leaf=is_packed
  )


class BlockedWeight(PackedWeight):
  """A weight in blocks; a table of many has a tuple of arrays."""

  def __init__(self, parts: Any, axes: AxisSplit):
    super().__init__(parts, axes)
    self.shape = jax.eval_shape(lambda x: self.unpack(x, axes), parts).shape
    self.dtype = jax.tree.leaves(parts)[0].dtype

  @staticmethod
  def pack(
    x: Any, axes: AxisSplit, place: Callable[[Any], Any] = lambda x: x
  ) -> Any:
    """Divides a weight into blocks."""
    if math.prod(x.shape) < _SMALL:
      return place(x[:].transpose(*axes.summed, *axes.free))
    *batch, last = axes.free
    size = x.shape[last]
    divisors = (w for w in range(_WIDTH, 0, -16) if size % w == 0)
    columns = next(divisors, size)
    if batch or last:
      return place(_to_blocks(x[:], axes, columns))
    # A vocabulary of a prime number of tokens leaves a block that is not full.
    columns = min(columns, _WIDTH)
    full = size - size % columns
    bounds = [*range(0, full, _ARRAY_BLOCKS * columns), full]
    if full < size:
      bounds.append(size)
    parts = [
      place(_to_blocks(x[i:j], axes, min(columns, j - i)))
      for i, j in itertools.pairwise(bounds)
    ]
    return tuple(parts) if len(parts) > 1 else parts[0]

  @staticmethod
  def unpack(parts: Any, axes: AxisSplit) -> Any:
    """Returns a weight as it was before `pack`."""
    if _is_undivided(parts, axes):
      return parts.transpose(*np.argsort((*axes.summed, *axes.free)))
    if isinstance(parts, tuple):
      arrays = [BlockedWeight.unpack(part, axes) for part in parts]
      # NumPy arrays stay on the host.
      library = np if isinstance(arrays[0], np.ndarray) else jnp
      return library.concatenate(arrays, axes.free[-1])
    start, end = len(axes.free) - 1, parts.ndim - 1
    x = parts.transpose(*range(start + 1), end, *range(start + 1, end))
    x = x.reshape(*x.shape[:start], -1, *x.shape[start + 2 :])
    return x.transpose(*np.argsort((*axes.free, *axes.summed)))

  def __getitem__(self, index: Any) -> jax.Array:
    """Returns rows of a table, a matrix whose columns are summed over."""
    (tokens,) = index if isinstance(index, tuple) else (index,)
    parts = self.parts if isinstance(self.parts, tuple) else (self.parts,)
    if _is_undivided(parts[0], self.axes):
      return jnp.moveaxis(parts[0][:, tokens], 0, -1)
    # There are few parts: reads a row of each.
    rows: Any = None
    start = 0
    for part in parts:
      columns, local = part.shape[-1], tokens - start
      part_rows = part[local // columns, :, local % columns]
      inside = (local >= 0)[..., None]
      rows = part_rows if rows is None else jnp.where(inside, part_rows, rows)
      start += _num_columns(part)
    return rows

  def rows(self, tokens: np.ndarray) -> Any:
    """Returns a packed table of some rows."""
    return self.pack(jnp.asarray(self[tokens]), self.axes)

  @staticmethod
  def axis(part: Any, axes: AxisSplit, axis: int, devices: int) -> int:
    """Returns the axis of a part that is divided."""
    if _is_undivided(part, axes):
      return (*axes.summed, *axes.free).index(axis)
    axis = (*axes.free, *axes.summed).index(axis)
    is_uneven = axis == len(axes.free) - 1 and part.shape[axis] % devices
    # Blocks that cannot be divided evenly are left, and the columns divided.
    return part.ndim - 1 if is_uneven else axis

  def product(self, x: Array, parts: Any, dtype: Any) -> Array:
    """Returns products of rows with all columns."""
    m, axes = len(x), self.axes
    if _is_undivided(parts, axes) or m > _MANY_ROWS:
      contracted = tuple(range(1, x.ndim)), axes.summed
      w = self.unpack(parts, axes)
      return jnp.tensordot(x, w, contracted, preferred_element_type=dtype)
    size = sum(part.size for part in jax.tree.leaves(parts))
    if m == 1 and (size >= _LARGE or x.dtype == jnp.bfloat16):
      x = jnp.pad(x, ((0, 1), *[(0, 0)] * len(axes.summed)))
    if not isinstance(parts, tuple):
      return _multiply_blocks(x, parts, axes, dtype)[:m].reshape(m, -1)
    # One part after the other, each written to its columns: the barriers keep
    # XLA from computing all parts first, and from a copy of all columns at the
    # end. The initial value is no constant, which XLA would copy too.
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


def _to_blocks(x: Any, axes: AxisSplit, columns: int) -> Any:
  """Divides a weight into blocks of `columns` columns, in one array."""
  *batch, last = axes.free
  start = len(batch)
  x = x.transpose(*batch, last, *axes.summed)
  x = x.reshape(*x.shape[:start], -1, columns, *x.shape[start + 1 :])
  return x.transpose(*range(start + 1), *range(start + 2, x.ndim), start + 1)


def _is_undivided(parts: Any, axes: AxisSplit) -> bool:
  ndim = len(axes.free) + len(axes.summed)
  return not isinstance(parts, tuple) and np.ndim(parts) == ndim


def _multiply_blocks(
  x: Array, part: Array, axes: AxisSplit, dtype: Any
) -> Array:
  """Multiplies rows with the blocks of one array, as a batch of products."""
  *batch, _ = range(part.ndim - len(axes.summed))
  copies = jnp.broadcast_to(x, (*part.shape[: len(batch)], *x.shape))
  summed = range(len(batch), len(batch) + len(axes.summed))
  dimensions = ([i + 1 for i in summed], [*summed]), (batch, batch)
  out = jax.lax.dot_general(
    copies, part, dimensions, preferred_element_type=dtype
  )
  return jnp.moveaxis(out, len(batch), 0)


def _num_columns(part: Array) -> int:
  return len(part) * part.shape[-1]
