"""A method that combines M methods; the lenience i selects the i-th of them.

One compiled decoding loop then runs many methods in one batch.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cascades import methods


def from_functions(
  pairs: Sequence[tuple[methods.Method, float]],
) -> methods.Method:
  """Combines M methods, each with its lenience, by a switch of functions."""
  # A method with several leniences is compiled once.
  unique = {method.name: method for method, _ in pairs}
  branch_indices = np.array(
    [[*unique].index(method.name) for method, _ in pairs]
  )
  leniences = np.array([lenience for _, lenience in pairs])

  def switch(field):
    def branch(method):
      function = getattr(method, field)
      return lambda d, lenience: jnp.broadcast_to(
        function(d, lenience), d.q.shape
      ).astype(d.q.dtype)

    branches = [branch(method) for method in unique.values()]

    def run(d, i):
      i = i.astype(jnp.int32)
      lenience = jnp.asarray(leniences, d.q.dtype)[i]
      index = jnp.asarray(branch_indices)[i]
      return jax.lax.switch(index, branches, d, lenience)

    return run

  return methods.Method(
    **dict(name='from_functions', equation='', strict=None, drafter_only=None),
    law_uses_q=any(method.law_uses_q for method in unique.values()),
    **{name: switch(name) for name in ('acceptance', 'residual', 'law')},
  )
