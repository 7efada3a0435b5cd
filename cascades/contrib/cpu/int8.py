"""Matrices in eight bits: rounded weights, and a scale for each output.

A weight is an int8 number times the scale of its output channel. Products round
the other operand too, with a scale for each row of it, and sum int8 x int8 in
int32, which is exact: a quarter of float32's bytes are read, by the units that
devices have for such products.

Every function of one row gives the same bits whatever rows are computed with
it, as `row_exact` needs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, Int32

from cascades.contrib.cpu.blocked import PackedParam, PackedWeight
from cascades.models import sharding
from cascades.models.sharding import AxisSplit

_LARGEST = 127
# No row has only numbers below: a row of zeros gets this one for its largest.
_TINY = 1e-30
# The least size of a weight for which compiling `_multiply_row` pays.
_LARGE = 2**24
# Numbers that are added side by side, in a CPU's vector; and the most of a row
# that are added to them: more would be read from too many places at a time.
_LANES, _RUN = 16, 1280
# Bytes that the address of an array must be a multiple of, to be shared.
_ALIGNMENT = 64
# Rows of a table that are copied at a time, and numbers that are rounded.
_TABLE_ROWS = 2**11
_ROUNDED_NUMBERS = 2**20

_barrier = jax.lax.optimization_barrier


class Rounded(NamedTuple):
  """A weight in eight bits with its axes in gemma's order."""

  values: Any
  scales: Any


class Int8Weight(PackedWeight):
  """A weight in eight bits: integers, and the scales of the free axes."""

  dtype = jnp.dtype('float32')

  def __init__(self, parts: tuple[Any, Any], axes: AxisSplit):
    super().__init__(parts, axes)
    order = np.argsort((*axes.free, *axes.summed))
    self.shape = tuple(parts[0].shape[i] for i in order)

  @staticmethod
  def pack(
    x: Any, axes: AxisSplit, place: Callable[[Any], Any] = lambda x: x
  ) -> tuple[Any, Any]:
    """Rounds a weight to eight bits."""
    count, order = len(axes.free), (*axes.free, *axes.summed)
    if isinstance(x, Rounded):
      values = _copy_integers(x.values, order)
      scales = x.scales.transpose(*order)[(..., *[0] * len(axes.summed))]
      return place(values), place(np.ascontiguousarray(scales))
    if isinstance(x, jax.Array):
      # It may span hosts.
      x = sharding.fetch(x)
    # Handles of a table are read a few rows at a time.
    if axes != AxisSplit((0,), (1,)):
      x = np.asarray(x).transpose(*order)
    values = allocate(x.shape)
    scales = np.empty(x.shape[:count], np.float32)
    *outer, rows = scales.shape
    # Few rows at a time: rounding takes several arrays of floats of their size.
    step = max(1, _ROUNDED_NUMBERS * scales.size // values.size)
    for index in np.ndindex(*outer):
      for i in range(0, rows, step):
        # A handle takes a slice alone.
        part = (*index, slice(i, i + step)) if index else slice(i, i + step)
        floats = np.asarray(x[part], np.float32)
        values[part], scales[part] = round_rows(floats)
    return place(values), place(scales)

  @staticmethod
  def unpack(parts: tuple[Any, Any], axes: AxisSplit) -> Any:
    """Returns a weight as it was before `pack`, but for its rounding."""
    values, scales = parts
    library = np if isinstance(values, np.ndarray) else jnp
    scales = scales.reshape(*scales.shape, *[1] * len(axes.summed))
    x = values.astype(library.float32) * scales
    return x.transpose(*np.argsort((*axes.free, *axes.summed)))

  def __getitem__(self, index: Any) -> Array:
    """Returns rows of a table, a matrix whose columns are summed over."""
    (tokens,) = index if isinstance(index, tuple) else (index,)
    values, scales = self.parts
    return values[tokens].astype(jnp.float32) * scales[tokens][..., None]

  def rows(self, tokens: np.ndarray) -> Any:
    """Returns a packed table of some rows."""
    return jax.tree.map(lambda x: x[tokens], self.parts)

  def product(
    self, x: Float[Array, 'M ...'], parts: tuple[Array, Array], dtype: Any
  ) -> Float[Array, 'M N']:
    """Returns products of rows, rounded to eight bits, in float32."""
    del dtype
    count, scales, multiply = len(x), parts[1].reshape(-1), _multiply_integers
    x = x.reshape(count, -1)
    values = parts[0].reshape(scales.size, -1)
    is_large = values.size >= _LARGE and jax.default_backend() == 'cpu'
    if count == 1 and is_large and _run_length(x.size):
      multiply = _multiply_row
    elif count == 1:
      # XLA on a CPU multiplies one row without the unit for int8.
      x = jnp.pad(x, ((0, 1), (0, 0)))
    largest = _barrier(jnp.maximum(jnp.max(jnp.abs(x), -1), _TINY))
    row_scales = largest * jnp.float32(1 / _LARGEST)
    inverse, row_scales = _barrier((_LARGEST / largest, row_scales))
    rounded = jnp.round(x * inverse[:, None]).astype(jnp.int8)
    sums = multiply(rounded, values)
    return (sums.astype(jnp.float32) * row_scales[:, None] * scales)[:count]


def to_gemma(packed: PackedParam) -> Rounded:
  """Returns a packed weight with its axes in gemma's order, as views."""
  (values, scales), axes = packed.parts, packed.axes
  order = np.argsort((*axes.free, *axes.summed))
  scales = scales.reshape(*scales.shape, *[1] * len(axes.summed))
  scales = np.broadcast_to(scales, values.shape)
  return Rounded(values.transpose(*order), scales.transpose(*order))


def _copy_integers(x: Any, order: tuple[int, ...]) -> np.ndarray:
  """Returns int8 values with their axes in another order; a table as it is."""
  rows = x.transpose(*order) if isinstance(x, np.ndarray) else x
  values = allocate(rows.shape)
  for i in range(0, len(values), _TABLE_ROWS):
    values[i : i + _TABLE_ROWS] = rows[i : i + _TABLE_ROWS]
  return values


def allocate(shape: tuple[int, ...]) -> np.ndarray:
  """Returns an int8 array that JAX can take on a CPU without a copy."""
  size = math.prod(shape)
  memory = np.empty(size + _ALIGNMENT, np.int8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].reshape(shape)


def round_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Rounds rows of float32 to eight bits; returns integers and scales."""
  summed = tuple(range(1, x.ndim))
  # Without arrays of the size of `x`, whose pages take longer than the numbers.
  largest = np.maximum(x.max(summed), -x.min(summed))
  scales = largest / np.float32(_LARGEST)
  # A channel that is not finite keeps its scale, by which faults are found.
  scales = np.where(scales == 0, np.float32(1), scales)
  with np.errstate(invalid='ignore'):
    quotients = x / scales.reshape(-1, *[1] * (x.ndim - 1))
    return np.rint(quotients, out=quotients).astype(np.int8), scales


def _multiply_integers(
  x: Int8[Array, 'M K'], y: Int8[Array, 'N K']
) -> Int32[Array, 'M N']:
  """Returns exact products of all rows."""
  return jax.lax.dot_general(
    x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
  )


def _multiply_row(
  x: Int8[Array, '1 K'], y: Int8[Array, 'N K']
) -> Int32[Array, '1 N']:
  """Returns exact products of one row, by 16 sums side by side.

  XLA on a CPU rearranges `y` before a product of matrices. This reads it as it
  lies in memory: one row takes .6 of the time, each further row another .6.
  """
  # The barrier depends on the row: it keeps a copy of `y` in 32 bits from being
  # made ahead of a loop of passes.
  x, y = _barrier((x, y))
  run = _run_length(x.size)
  x, y = (z.reshape(len(z), -1, run) for z in (x, y))
  sums = jnp.zeros((*y.shape[:2], _LANES), jnp.int32)
  for i in range(0, run, _LANES):
    part = slice(i, i + _LANES)
    sums += y[..., part].astype(jnp.int32) * x[..., part].astype(jnp.int32)
  return _barrier(sums).sum((1, 2))[None]


def _run_length(size: int) -> int:
  """Returns the numbers of a row that one sum reads; 0 if none fit."""
  runs = range(_RUN, _RUN // 4, -_LANES)
  return next((run for run in runs if size % run == 0), 0)
