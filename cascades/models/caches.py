"""Caches of keys and values of one sequence, as gemma's modules keep them.

A cache is a dict of layers, 'layer_0' and so on, each with keys, values,
positions and `end_index`, the number of tokens that were written.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from cascades.models import products

Cache = PyTree
# Axes behind the axis of slots, by the name of an array.
_TRAILING_AXES = {'k': 2, 'v': 2, 'positions': 0}


def select_layers(cache: Cache, layers: Iterable[int]) -> Cache:
  """Returns the part of a cache that belongs to some layers."""
  return {f'layer_{i}': cache[f'layer_{i}'] for i in layers}


def rewind(cache: Cache, length: Int[Array, '']) -> Cache:
  """Returns a cache as it was with `length` tokens; changes integers only."""
  return {
    name: layer | {'end_index': jnp.full_like(layer['end_index'], length)}
    for name, layer in cache.items()
  }


def move(cache: Cache, at: Int[Array, ''], slots: Int[Array, 'N']) -> Cache:
  """Returns a cache with some slots copied to other slots."""

  def move_leaf(path, x):
    trailing = _TRAILING_AXES.get(products.tree_keys(path)[-1])
    if trailing is None:
      return x
    axis = x.ndim - 1 - trailing
    copies = jnp.take(x, slots, axis=axis)
    return jax.lax.dynamic_update_slice_in_dim(x, copies, at, axis)

  return jax.tree_util.tree_map_with_path(move_leaf, cache)


def pad(cache: Cache, larger: Cache) -> Cache:
  """Returns a cache padded with zeros to the shapes of a larger one."""
  return jax.tree.map(
    lambda x, y: jnp.pad(
      x, [(0, n - m) for m, n in zip(x.shape, y.shape, strict=True)]
    ),
    cache,
    larger,
  )
