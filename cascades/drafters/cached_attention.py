"""Attention of drafters to cached keys and values."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Score of a hidden slot. Finite, since all slots may be hidden.
_HIDDEN = -2.3819763e38


class KeyValueView(NamedTuple):
  """Cached keys and values: S slots of K heads of size h."""

  keys: Float[Array, 'S K h']
  values: Float[Array, 'S K h']
  is_visible: Bool[Array, 'S']


def rms_norm(
  x: Float[Array, '*B n'], scale: Float[Array, '*S n'], epsilon: float = 1e-6
) -> Array:
  """Divides by the root mean square, in float32, and multiplies by a scale."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + epsilon)
  return (y * scale.astype(jnp.float32)).astype(x.dtype)


def attend(
  queries: Float[Array, 'N h'], *views: KeyValueView
) -> Float[Array, 'N h']:
  """Returns the attention of each query over the slots of all views."""
  num_queries, size = queries.shape
  grouped = queries.reshape(views[0].keys.shape[1], -1, size)

  def scores(view):
    products = jnp.einsum('kgh,skh->kgs', grouped, view.keys)
    return jnp.where(view.is_visible, products.astype(jnp.float32), _HIDDEN)

  logits = jnp.concatenate([scores(view) for view in views], -1)
  weights = jnp.where(logits > _HIDDEN, jax.nn.softmax(logits), 0)
  weights = weights.astype(queries.dtype)
  ends = np.cumsum([len(view.keys) for view in views])
  # Views are summed one by one: concatenation would copy the longest view for
  # every token.
  first, *rest = (
    jnp.einsum('kgs,skh->kgh', x, view.values)
    for x, view in zip(jnp.split(weights, ends[:-1], -1), views, strict=True)
  )
  return sum(rest, start=first).reshape(num_queries, size)
