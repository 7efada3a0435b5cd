"""Methods that combine M methods; the lenience i selects the i-th of them.

One compiled decoding loop then runs many methods in one batch.

  from_tables     the methods' values for known distributions, as tables
  from_functions  the methods' own functions
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cascades import methods
from cascades.proof.table_models import Table

# The functions that every `Method` has.
_FIELDS = ('acceptance', 'residual', 'law')
# Rows (contexts) with keys closer than this may be confused, which is harmless
# if the methods' values of both differ by less than this.
_NEAR = 1e-4
# Size of a row's key. Among hundreds of rows, single numbers are often closer
# than `_NEAR`, and pairs of numbers rarely.
_KEY_SIZE = 2
# Rows compared on either side of the sorted position of a key.
_WINDOW = 8


def _combined(name: str, **fields: Any) -> methods.Method:
  """Makes a method whose lenience is the index of another method."""
  fields |= dict(name=name, equation='by lenience', reference='tests')
  return methods.Method(strict=None, drafter_only=None, **fields)


def from_tables(
  tables: Sequence[Table], distributions: Sequence[methods.Distributions]
) -> methods.Method:
  """Combines M methods by a lookup of their values in each context.

  Tests of each method on the same distributions show that the tables are
  correct. The caller decides whether the methods have a single target.
  """
  d = jax.tree.map(lambda *x: np.concatenate(x), *distributions)
  values = {
    name: np.concatenate([getattr(t, name) for t in tables], 1, dtype='f4')
    for name in _FIELDS
  }
  rejected = (d.q - d.q * values['acceptance']).sum(-1, keepdims=True)
  # A residual matters only as far as drafts are rejected.
  compared = values | dict(residual=rejected * values['residual'])
  find = _context_finder(d, [*compared.values()])

  def look_up(name):
    table = values[name]
    return lambda d, i: jnp.asarray(table)[i.astype(jnp.int32), find(d)]

  fields = {name: look_up(name) for name in _FIELDS}
  return _combined('from_tables', **fields)


def _context_finder(
  d: methods.Distributions, values: Collection[np.ndarray]
) -> Callable[[methods.Distributions], Array]:
  """Returns a function that finds the context of given distributions.

  Contexts are sorted by the first number of their keys; those around the sorted
  position of the given key are compared. `values` are [M, contexts, V].
  """
  make_key = _key_function(d.q.shape[-1])
  keys = np.asarray(make_key(d))
  distances = np.abs(keys[:, :, None] - keys[:, None]).sum(0)
  for i, j in np.argwhere(np.triu(distances < _NEAR, 1)):
    if any(np.abs(x[:, i] - x[:, j]).max() > _NEAR for x in values):
      raise ValueError(f'from_tables: contexts {i} and {j} are too similar.')
  # Equal contexts are interchangeable.
  keys, order = np.unique(keys, axis=1, return_index=True)
  first = keys[0]
  bounds = np.searchsorted(first, [first - _NEAR, first + _NEAR])
  if np.diff(bounds, axis=0).max() > _WINDOW:
    raise ValueError('from_tables: too many contexts have similar keys.')

  def find(d):
    key = make_key(d)
    indices = jnp.searchsorted(first, key[0]) + jnp.arange(-_WINDOW, _WINDOW)
    indices = jnp.clip(indices, 0, len(first) - 1)
    distances = jnp.abs(jnp.asarray(keys)[:, indices] - key[:, None]).sum(0)
    return jnp.asarray(order)[indices[jnp.argmin(distances)]]

  return find


def _key_function(size: int) -> Callable[[methods.Distributions], Array]:
  """Returns a function from distributions to a key, [_KEY_SIZE, ...]."""
  rng = np.random.default_rng(0)
  weights = rng.uniform(-1, 1, (_KEY_SIZE, 5, size)).astype(np.float32)

  def make_key(d):
    fields = [d.q, d.p, d.q_gate, d.p_gate]
    if d.p_logits is not None:
      # Contexts may differ in the logits alone, which some methods read.
      fields.append(jax.nn.softmax(d.p_logits))
    return jnp.stack(
      [
        sum((x * w).sum(-1) for x, w in zip(fields, projection, strict=False))
        for projection in weights
      ]
    )

  return make_key


def from_functions(
  pairs: Sequence[tuple[methods.Method, float]], with_rules: bool = False
) -> methods.Method:
  """Combines M methods, each with its lenience, by a switch of functions.

  With deferral rules, a method without one defers nowhere.
  """
  # A method with several leniences is compiled once.
  unique = {method.name: method for method, _ in pairs}
  branch_indices = np.array(
    [[*unique].index(method.name) for method, _ in pairs]
  )
  leniences = np.array([lenience for _, lenience in pairs])

  def switch(field):
    def branch(method):
      function = getattr(method, field) or (lambda d, lenience: jnp.zeros(()))
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

  return _combined(
    'from_functions',
    rule=switch('rule') if with_rules else None,
    **{name: switch(name) for name in _FIELDS},
  )
