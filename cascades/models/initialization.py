"""Random parameters of a Gemma, for training from scratch."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def init_params(
  key: jax.Array, shapes: PyTree, scale_plus_one: bool, gate_by_rows: bool
) -> PyTree:
  """Returns random parameters.

  Embeddings have variance 1 / width, since Gemma multiplies them by its square
  root, matrices have variance 1 / fan-in, and norms start as the identity.
  """
  norm_scale = jnp.zeros if scale_plus_one else jnp.ones

  def draw_leaf(leaf_key, path, leaf):
    name = jax.tree_util.keystr(path)
    if leaf.ndim == 1:
      return norm_scale(leaf.shape, leaf.dtype)
    fan_in = leaf.shape[-2]
    if 'embedding' in name:
      fan_in = leaf.shape[-1]
    elif 'attn_vec' in name:
      fan_in = leaf.shape[0] * leaf.shape[1]
    elif 'gating' in name and gate_by_rows:
      fan_in = leaf.shape[-1]
    return jax.random.normal(leaf_key, leaf.shape, leaf.dtype) * fan_in**-0.5

  leaves, treedef = jax.tree_util.tree_flatten_with_path(shapes)
  keys = jax.random.split(key, len(leaves))
  params = [draw_leaf(k, *x) for k, x in zip(keys, leaves, strict=True)]
  return jax.tree.unflatten(treedef, params)
