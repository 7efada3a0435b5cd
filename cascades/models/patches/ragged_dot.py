"""Batches mixtures of experts, which use `jax.lax.ragged_dot`, under `vmap`.

JAX 0.12.0.1 has no `vmap` of `ragged_dot`, by which gemma sends each token to
its experts.

Unnecessary from the first release of JAX in which
`jax.vmap(jax.lax.ragged_dot)` accepts batched rows and batched group sizes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def vmap_as_batch(batched: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """Returns a function whose `vmap` is one call with a larger batch.

  A token's experts do not depend on other tokens, so that rows of several
  batches can be read together, as long as each row keeps its `end_index`.
  """

  @jax.custom_batching.custom_vmap
  def run(params, *rows):
    return batched(params, *rows)

  @run.def_vmap
  def rule(size, is_batched, params, *rows):
    params_batched, *rows_batched = is_batched
    if any(jax.tree.leaves(params_batched)):
      raise ValueError(
        'params: several sets at once are not supported by a mixture of'
        ' experts; give one set after the other.'
      )

    def merge(x, has_axis):
      if not has_axis:
        x = jnp.broadcast_to(x, (size, *x.shape))
      return x.reshape(-1, *x.shape[2:])

    out = run(params, *jax.tree.map(merge, tuple(rows), tuple(rows_batched)))
    out = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out)
    return out, jax.tree.map(lambda x: True, out)

  return run
