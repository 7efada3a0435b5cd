"""Tests of matrices in panels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades.contrib.cpu.blocked import AxisSplit, BlockedWeight

_TABLE, _COLUMNS = AxisSplit((0,), (1,)), AxisSplit((1,), (0,))
# Orders of weights, their shapes, and the equations of gemma's modules.
ORDERS = {
  'table': (_TABLE, (1088, 48)),
  'large table': (_TABLE, (64 * 1024 + 640, 8)),
  'keys and values': (AxisSplit((0, 1, 3), (2,)), (2, 2, 64, 192)),
  'queries': (AxisSplit((0, 2), (1,)), (4, 96, 128)),
  'of heads': (AxisSplit((2,), (0, 1)), (4, 64, 192)),
  'gate by rows': (AxisSplit((0, 1), (2,)), (2, 320, 80)),
  # 48 columns a panel; 16; and a number of columns that has no such divisor.
  'by 48': (_COLUMNS, (400, 336)),
  'by 16': (_COLUMNS, (400, 176)),
  'odd': (_COLUMNS, (400, 90)),
  # 17 panels of 64 columns, one of 63; and 128, one, and one of 3.
  'prime table': (_TABLE, (1151, 40)),
  'large prime table': (_TABLE, (64 * 129 + 3, 8)),
  'small': (AxisSplit((2,), (0, 1)), (2, 8, 24)),
  'small table': (_TABLE, (50, 24)),
}
every_order = pytest.mark.parametrize('name', ORDERS)


def make(name, dtype=np.float32):
  order, shape = ORDERS[name]
  w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  return order, jnp.asarray(w).astype(dtype)


def rows(order, shape, *lead, dtype=np.float32):
  sizes = [shape[axis] for axis in order.summed]
  x = np.random.default_rng(1).normal(size=(*lead, *sizes))
  return jnp.asarray(x.astype(np.float32)).astype(dtype)


def plain(x, w, order):
  """The product in float64."""
  count = len(order.summed)
  axes = tuple(range(x.ndim - count, x.ndim)), order.summed
  return np.tensordot(
    np.asarray(x, np.float64), np.asarray(w, np.float64), axes
  )


@every_order
def test_what_is_packed_is_unpacked_again(name):
  order, w = make(name)
  for array in w, np.asarray(w):
    packed = BlockedWeight.pack(array, order)
    again = BlockedWeight.unpack(packed, order)
    assert isinstance(again, np.ndarray) == isinstance(array, np.ndarray)
    np.testing.assert_array_equal(again, w)
  widths = [x.shape[-1] for x in jax.tree.leaves(packed)]
  if 'prime' in name:
    assert set(widths[:-1]) == {64}
    assert widths[-1] == len(w) % 64
  else:
    assert name == 'odd' or 'small' in name or set(widths) <= {16, 32, 48, 64}
  parts = {'large table': 9, 'prime table': 2, 'large prime table': 3}
  assert isinstance(packed, tuple) == (name in parts)
  assert len(widths) == parts.get(name, 1)


def dot(x, packed, order):
  return BlockedWeight(packed, order).dot(x)


@every_order
@pytest.mark.parametrize('count', [1, 5, 200])
def test_products_are_those_of_the_matrix(name, count):
  order, w = make(name)
  x, packed = rows(order, w.shape, 1, count), BlockedWeight.pack(w, order)
  assert BlockedWeight(packed, order).shape == w.shape
  got = jax.jit(dot, static_argnums=2)(x, packed, order)
  np.testing.assert_allclose(got, plain(x, w, order), rtol=0, atol=2e-4)


def test_a_single_row_is_two_where_the_weight_is_in_no_cache():
  # On CPUs one row is multiplied otherwise, and takes longer than two.
  for name, dtype, is_padded in (
    ('of heads', np.float32, False),
    ('of heads', jnp.bfloat16, True),
    ('keys and values', np.float32, False),
    ('odd', np.float32, False),
    ('by 48', np.float32, True),
  ):
    order, w = make(name, dtype)
    packed = BlockedWeight.pack(w, order)
    x = rows(order, w.shape, 1, dtype=dtype)
    text = str(jax.make_jaxpr(dot, static_argnums=2)(x, packed, order))
    assert ('pad[' in text) == is_padded


@every_order
def test_rows_of_all_sequences_are_multiplied_together(name):
  order, w = make(name)
  x, packed = rows(order, w.shape, 3, 2, 4), BlockedWeight.pack(w, order)
  one = jax.vmap(lambda x, packed: dot(x, packed, order), (0, None))
  each = jax.vmap(one, (0, None))
  got = jax.jit(each)(x, packed)
  np.testing.assert_allclose(got, plain(x, w, order), rtol=0, atol=2e-4)
  # The weights are read once: one product, of all rows.
  text = str(jax.make_jaxpr(each)(x, packed))
  parts = len(packed) if isinstance(packed, tuple) else 1
  assert text.count('dot_general[') == parts


def test_weights_may_differ_as_well():
  order, w = make('queries')
  x = rows(order, w.shape, 3, 2)
  packed = jnp.stack([BlockedWeight.pack(w * i, order) for i in range(3)])
  got = jax.vmap(lambda x, packed: dot(x, packed, order))(x, packed)
  want = [plain(x[i], w * i, order) for i in range(3)]
  np.testing.assert_allclose(got, want, rtol=0, atol=5e-4)


@pytest.mark.parametrize('count', [1, 2])
def test_half_as_many_bits_give_the_same_product_rounded(count):
  order, w = make('keys and values', jnp.bfloat16)
  x = rows(order, w.shape, count, dtype=jnp.bfloat16)
  got = dot(x, BlockedWeight.pack(w, order), order)
  assert got.dtype == jnp.bfloat16
  assert got.shape == (count, 2, 2, 192)
  want = plain(x, w, order)
  np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize('name', [n for n in ORDERS if 'table' in n])
def test_rows_of_a_table_are_found(name):
  order, w = make(name)
  weight = BlockedWeight(BlockedWeight.pack(w, order), order)
  last = len(w) - 1
  tokens = jnp.array([[0, 1, last], [last - 1, 17, last // 2]])
  np.testing.assert_array_equal(weight[tokens], w[tokens])
  np.testing.assert_array_equal(weight[(tokens,)], w[tokens])
  np.testing.assert_array_equal(weight[tokens[0, 2]], w[last])
  np.testing.assert_array_equal(jnp.asarray(weight), w)
