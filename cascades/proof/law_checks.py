"""Checks of equation (L) on distributions of every kind, in two precisions.

For each kind of distribution and each lenience, a method's acceptance must be
in [0, 1], its residual and law must be distributions, and equation (L) of
`methods` must hold for every draft token. Nothing is sampled.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import experimental

from cascades import methods
from cascades.proof import table_models

# JAX 0.8 moved it.
_module: Any = jax if hasattr(jax, 'enable_x64') else experimental
# Float64 within a `with` statement.
enable_x64 = _module.enable_x64
DISTRIBUTION_KINDS = ('random', 'equal', 'disjoint', 'one_hot', 'near_equal')
_FIELDS = ('acceptance', 'residual', 'law')

# Values of one kind of distribution: q and p, [positions, V], and by the names
# in _FIELDS the method's functions, [leniences, positions, V].
_Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """The outcome of one check of an audit.

  Attributes:
    name: The property that was checked, in a few words.
    passed: True if the property holds.
    value: The largest error, or the largest G-statistic; nan if there is none.
    detail: A counterexample, over several lines; empty if the check passed.
    limit: The largest value that passes; nan if there is none.
    leniences: The leniences that were sampled; empty if nothing was.
  """

  name: str
  passed: bool
  value: float = math.nan
  detail: str = ''
  limit: float = math.nan
  leniences: tuple[float, ...] = ()


def draw_distributions(
  kind: str,
  count: int = 64,
  size: int = 9,
  seed: int = 0,
  pairs: np.ndarray | None = None,
) -> methods.Distributions:
  """Draws distributions to test a method on, in float64, as numpy arrays."""

  def draw(rng, count):
    return rng.dirichlet(np.full(size, 0.5), count)

  rng = np.random.default_rng(seed)
  q, p = table_models.separate(draw(rng, count), draw(rng, count), draw, pairs)
  if kind == 'equal':
    p = q
  elif kind == 'disjoint':
    q[:, ::2], p[:, 1::2] = 0, 0
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
  elif kind == 'one_hot':
    q = np.eye(size)[rng.integers(size, size=count)]
    p = np.eye(size)[rng.integers(size, size=count)]
  elif kind == 'near_equal':
    p = q * (1 + 1e-7 * rng.standard_normal(q.shape))
    p = p / p.sum(1, keepdims=True)
  gates = rng.dirichlet(np.ones(size), (2, count))
  # A softmax ignores a constant added to all logits; most are above 0.
  logits = np.log(gates[1]) + rng.uniform(0, 12, (count, 1))
  # NumPy arrays, which methods take as well.
  arrays: Any = dict(
    q=q, p=p, q_gate=gates[0], p_gate=gates[1], p_logits=logits
  )
  return methods.Distributions(**arrays)


def check_shapes(method: methods.Method) -> Check:
  """Checks that each function returns [V], and a rule [] or [V]."""
  name = 'functions give [V]'
  probs: Any = jax.ShapeDtypeStruct((9,), jnp.float32)
  d = methods.Distributions(
    q=probs, p=probs, q_gate=probs, p_gate=probs, p_logits=probs
  )
  lenience = jax.ShapeDtypeStruct((), jnp.float32)
  for field in (*_FIELDS, 'rule'):
    fn: Callable | None = getattr(method, field)
    if fn is None:
      continue
    try:
      shape = jax.eval_shape(fn, d, lenience).shape
    except Exception as e:
      # Any error of a user's function is a result of the audit.
      message = ' '.join(str(e).split())[:200]
      detail = f'{field} fails: {type(e).__name__}: {message}'
      return Check(name=name, passed=False, detail=detail)
    allowed = [(9,), ()] if field == 'rule' else [(9,)]
    if shape not in allowed:
      detail = f'{field} gives shape {shape} for 9 tokens, not (9,).'
      return Check(name=name, passed=False, detail=detail)
  return Check(name=name, passed=True)


def check_law(
  method: methods.Method, leniences: Sequence[float], x64: bool, seed: int = 0
) -> list[Check]:
  """Checks that all values are probabilities, and if so, equation (L).

  In float64 also that the law is p or q at the leniences that declare it.
  """
  bits, tolerance = ('float64', 1e-9) if x64 else ('float32', 1e-5)

  def all_fields(d, lenience):
    return {name: getattr(method, name)(d, lenience) for name in _FIELDS}

  over_grid = jax.jit(jax.vmap(jax.vmap(all_fields, (0, None)), (None, 0)))
  values: dict[str, _Values] = {}
  with enable_x64(x64):
    for kind in DISTRIBUTION_KINDS:
      d = draw_distributions(kind, seed=seed)
      d = jax.tree.map(lambda x: jnp.asarray(x, bits), d)
      fields = jax.device_get(over_grid(d, jnp.asarray(leniences, bits)))
      values[kind] = fields | {'q': np.asarray(d.q), 'p': np.asarray(d.p)}

  def check(name, fields, errors_of):
    # Errors of each kind, [leniences, positions, V].
    errors = {kind: errors_of(x) for kind, x in values.items()}
    kind = max(errors, key=lambda kind: errors[kind].max())
    index = np.unravel_index(errors[kind].argmax(), errors[kind].shape)
    value, detail = float(errors[kind][index]), ''
    if not value <= tolerance:
      i, row, token = map(int, index)
      place = f'{kind} distributions {row}, lenience {leniences[i]:g}'
      detail = f'{place}, token {token}:\n'
      detail += _counterexample(values[kind], i, row, fields)
    return Check(
      name=name, passed=not detail, value=value, detail=detail, limit=tolerance
    )

  checks = [
    check(f'acceptance is in [0, 1] ({bits})', _FIELDS[:1], _unit_errors),
    *(
      check(
        f'{name} is a distribution ({bits})',
        (name,),
        lambda x, name=name: _simplex_errors(x[name]),
      )
      for name in _FIELDS[1:]
    ),
  ]
  if not all(check.passed for check in checks):
    return checks
  name = f'law = q a + (1 - sum q a) residual ({bits})'
  checks.append(check(name, _FIELDS, lambda x: abs(_emitted(x) - x['law'])))
  for field, side in (('strict', 'p'), ('drafter_only', 'q')):
    limit = getattr(method, field)
    if x64 and checks[3].passed and limit is not None:
      at_limit = (np.asarray(leniences) == limit)[:, None, None]
      name = f'at {field} lenience {limit:g} the law is {side}'
      checks.append(
        check(
          name,
          ('law',),
          lambda x, at=at_limit, side=side: at * abs(x['law'] - x[side]),
        )
      )
  return checks


def _unit_errors(values: _Values) -> np.ndarray:
  """Computes the distance of each acceptance from [0, 1]."""
  x = values['acceptance']
  return np.where(np.isfinite(x), np.abs(x - np.clip(x, 0, 1)), np.inf)


def _simplex_errors(x: np.ndarray) -> np.ndarray:
  """Computes the negative part of an entry, or the error of the sum over V."""
  sum_error = np.abs(x.sum(-1, keepdims=True) - 1)
  error = np.maximum(np.maximum(0, -x), sum_error)
  return np.where(np.isfinite(error), error, np.inf)


def _emitted(values: _Values) -> np.ndarray:
  """Computes q a + (1 - sum q a) residual, [leniences, positions, V]."""
  q = values['q']
  accepted = q * values['acceptance']
  rejection = (q - accepted).sum(-1, keepdims=True)
  return accepted + rejection * values['residual']


def _counterexample(
  values: _Values, i: int, n: int, fields: Sequence[str]
) -> str:
  """Lists distributions n, and the method's values at lenience i."""

  def line(name, row):
    numbers = ' '.join(f'{x:.4g}' for x in row)
    return f'{name:<11}{numbers}'

  text = [
    line('q', values['q'][n]),
    line('p', values['p'][n]),
    *(line(name, values[name][i, n]) for name in fields),
  ]
  if 'law' in fields and len(fields) > 1:
    text.append(line('emitted', _emitted(values)[i, n]))
  return '\n'.join(text)
