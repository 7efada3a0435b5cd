"""Methods that stand for many, chosen by the lenience.

With one of them a compiled loop decodes with all the methods in one batch:
what proofs of the loop are made with, as loops take long to compile.

  looked_up  what the methods said of known distributions, as tables
  one_of     the methods' own functions
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cascades import methods
from cascades.proof.tabulated import Table

# Of a `Method`, what is always there.
_FIELDS = ('acceptance', 'residual', 'law')


def _by_field(pick: Callable[[str], Any]) -> dict[str, Any]:
  """Returns the functions that every method has, by name."""
  return {name: pick(name) for name in _FIELDS}


# Rows whose numbers are nearer than that may be taken for each other, which
# does no harm where what is said of them differs by less than this.
_NEAR = 1e-4
# Numbers by which a row is found: of hundreds of rows, one number of two is
# often nearer than that, and so are two of them hardly ever.
_NUMBERS = 2
# Rows that are looked at on either side of where a row is looked for.
_BESIDE = 8


def looked_up(
  tables: Sequence[Table],
  seen: Sequence[methods.Distributions],
  with_rules: bool = False,
) -> methods.Method:
  """A method whose lenience i is the i-th method at its own lenience.

  What it says is what those methods said of the distributions that the loop
  will see: it finds the row that it is shown, and looks up acceptance,
  residual, law and rule. So one small program verifies them all, in one batch,
  whatever they are; that each of them says what is right is shown without the
  loop, on the same distributions.

  Args:
    tables: What the methods say of all that the loop may show it; the same M
      methods in each.
    seen: For each table the distributions that it was made of, each field
      [contexts, V].
    with_rules: Whether it has their deferral rules; all must have one.

  Raises:
    ValueError: Two rows are so near that the lookup may take one for the other,
      though the methods do not say the same of both.
  """
  d = jax.tree.map(lambda *x: np.concatenate(x), *seen)
  said = {
    n: np.concatenate([getattr(t, n) for t in tables], 1).astype(np.float32)
    for n in (*_FIELDS, 'deferred')
  }
  kept = d.q * said['acceptance']
  rejected = (d.q - kept).sum(-1, keepdims=True)
  # A residual matters as far as anything is rejected.
  find = _finder(
    d, [*(said | dict(residual=rejected * said['residual'])).values()]
  )

  def pick(name):
    values = said[name]
    return lambda d, i: jnp.asarray(values)[i.astype(jnp.int32), find(d)]

  return methods.Method(
    name='looked_up',
    equation='by lenience',
    reference='tests',
    strict=None,
    drafter_only=None,
    # Whether they are to be verified so is for who asks to see.
    single_target=True,
    rule=pick('deferred') if with_rules else None,
    **_by_field(pick),
  )


def _finder(
  d: methods.Distributions, said: Collection[np.ndarray]
) -> Callable[[methods.Distributions], Array]:
  """A function that finds the row that it is shown.

  Rows are sorted by the first of their numbers, and compared with those beside
  the place of the one that is looked for.

  Args:
    d: All rows, each field [rows, V].
    said: Arrays [M, rows, V] of what the methods say of the rows.

  Returns:
    From distributions [V] to the number of a row.

  Raises:
    ValueError: There are rows that it could take for each other.
  """
  number = _numbering(d.q.shape[-1])
  numbers = np.asarray(number(d))
  _check_apart(numbers, said)
  # Of equal rows one will do.
  numbers, order = np.unique(numbers, axis=1, return_index=True)
  first = numbers[0]
  beside = np.searchsorted(first, [first - _NEAR, first + _NEAR])
  if np.diff(beside, axis=0).max() > _BESIDE:
    raise ValueError('looked_up: too many rows are near each other.')

  def find(d):
    own = number(d)
    place = jnp.searchsorted(first, own[0]) + jnp.arange(-_BESIDE, _BESIDE)
    place = jnp.clip(place, 0, len(first) - 1)
    apart = jnp.abs(jnp.asarray(numbers)[:, place] - own[:, None]).sum(0)
    return jnp.asarray(order)[place[jnp.argmin(apart)]]

  return find


def _numbering(size: int) -> Callable[[methods.Distributions], Array]:
  """A function that makes a few numbers of a row, by which the row is found.

  Args:
    size: V.

  Returns:
    From distributions [..., V] to numbers [_NUMBERS, ...].
  """
  rng = np.random.default_rng(0)
  weights = rng.uniform(-1, 1, (_NUMBERS, 5, size)).astype(np.float32)

  def number(d):
    seen = [d.q, d.p, d.q_gate, d.p_gate]
    if d.p_logits is not None:
      # Rows can be equal in all else, and a method look at these.
      seen.append(jax.nn.softmax(d.p_logits))
    return jnp.stack(
      [
        sum((x * w).sum(-1) for x, w in zip(seen, of_one, strict=False))
        for of_one in weights
      ]
    )

  return number


def _check_apart(numbers: np.ndarray, said: Collection[np.ndarray]) -> None:
  """Refuses rows that could be taken for each other where that matters.

  Args:
    numbers: [_NUMBERS, rows], what each row is found by.
    said: Arrays [M, rows, V] of what the methods say of the rows.

  Raises:
    ValueError: There are two such rows.
  """
  distances = np.abs(numbers[:, :, None] - numbers[:, None]).sum(0)
  for i, j in np.argwhere(np.triu(distances < _NEAR, 1)):
    if any(np.abs(x[:, i] - x[:, j]).max() > _NEAR for x in said):
      raise ValueError(f'looked_up: rows {i} and {j} cannot be told apart.')


def one_of(
  pairs: Sequence[tuple[methods.Method, float]], with_rules: bool = False
) -> methods.Method:
  """A method whose lenience i is the i-th method at its own lenience.

  The methods' own functions run in it, where `looked_up` has what they said.

  Args:
    pairs: Methods, each at a lenience.
    with_rules: Whether it has their deferral rules, 0 where there is none.
  """
  # A method is there once, at however many leniences.
  every = list(dict.fromkeys(method.name for method, _ in pairs))
  which = np.array([every.index(method.name) for method, _ in pairs])
  leniences = np.array([lenience for _, lenience in pairs])

  def pick(field):
    def branch(method):
      said = getattr(method, field) or (lambda d, lenience: jnp.zeros(()))

      def run(d, lenience):
        return jnp.broadcast_to(said(d, lenience), d.q.shape).astype(d.q.dtype)

      return run

    own = {method.name: branch(method) for method, _ in pairs}

    def run(d, i):
      i = i.astype(jnp.int32)
      lenience = jnp.asarray(leniences, d.q.dtype)[i]
      return jax.lax.switch(
        jnp.asarray(which)[i], [own[name] for name in every], d, lenience
      )

    return run

  return methods.Method(
    name='one_of',
    equation='by lenience',
    reference='tests',
    strict=None,
    drafter_only=None,
    single_target=all(m.single_target for m, _ in pairs),
    rule=pick('rule') if with_rules else None,
    **_by_field(pick),
  )
