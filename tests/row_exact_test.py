"""Functions whose results for a row do not depend on other rows, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades.contrib.cpu import row_exact

_KEYS = np.random.default_rng(1).normal(size=(64, 96, 24)).astype(np.float32)


def _rms(x):
  return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def _attend(x, keys):
  """Queries of two heads that attend to the keys of a sequence."""
  x = x.reshape(1, len(x), 2, -1)
  logits = jnp.einsum('BTNH,BSNH->BTNS', x, keys[None, :, None])
  return jnp.einsum(
    'BTNS,BSNH->BTNH', jax.nn.softmax(logits), keys[None, :, None]
  )


_FUNCTIONS = {
  'sum': lambda x, keys: jnp.sum(x, -1),
  'mean of squares': lambda x, keys: jnp.mean(jnp.square(x), -1),
  'norm': lambda x, keys: _rms(x),
  'softmax': lambda x, keys: jax.nn.softmax(3 * x),
  'quotient': lambda x, keys: x / (1 + jnp.sum(jnp.abs(x), -1, keepdims=True)),
  'gelu': lambda x, keys: jax.nn.gelu(x),
  'sigmoid': lambda x, keys: jax.nn.sigmoid(x),
  'tanh': lambda x, keys: 30 * jnp.tanh(x / 30),
  'product and sum': lambda x, keys: x * x[:, ::-1] + x,
  'attention': _attend,
}


def _rows(function, batch, width, x):
  """Results of the first sequence's rows, read `width` at a time."""
  run = jax.jit(jax.vmap(row_exact.row_exact(function)))
  keys = _KEYS[:batch]
  parts = [
    run(x[:batch, i : i + width], keys) for i in range(0, x.shape[1], width)
  ]
  return np.concatenate(
    [np.asarray(part)[0].reshape(width, -1) for part in parts]
  )


@pytest.mark.parametrize('name', _FUNCTIONS)
def test_a_row_has_the_same_bits_in_any_batch_and_block(name):
  x = np.random.default_rng(0).normal(size=(64, 40, 48)).astype(np.float32)
  expected = _rows(_FUNCTIONS[name], 2, 1, x)
  for batch, width in (1, 1), (1, 5), (2, 8), (8, 1), (8, 5), (1, 40), (64, 2):
    got = _rows(_FUNCTIONS[name], batch, width, x)
    np.testing.assert_array_equal(got, expected, (batch, width))
  plain = np.asarray(_FUNCTIONS[name](x[0], _KEYS[0])).reshape(
    len(expected), -1
  )
  np.testing.assert_allclose(expected, plain, rtol=1e-4, atol=1e-5)


def test_a_quotient_in_bfloat16_keeps_its_dtype():
  cap = row_exact.row_exact(lambda x: jnp.tanh(x / 30) * 30)
  x = jnp.asarray(_KEYS[0], jnp.bfloat16)
  assert cap(x).dtype == x.dtype


def test_trees_and_integers_pass_through():
  def function(tree, count):
    return {'sum': tree['x'].sum(-1) + count, 'count': (count + 1, None)}

  out = jax.jit(row_exact.row_exact(function))({'x': jnp.ones((3, 5))}, 2)
  np.testing.assert_array_equal(out['sum'], [7, 7, 7])
  assert out['count'] == (3, None)
