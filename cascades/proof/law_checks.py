"""Checks of equation (L) on distributions of every kind, in two precisions.

For each kind of distribution and each lenience, a method's acceptance must be
in [0, 1], its residual and law must be distributions, and equation (L) of
`methods` must hold for every draft token. Nothing is sampled.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
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
# Largest error that passes in float64 and in float32.
_TOLERANCE_64, _TOLERANCE_32 = 1e-9, 1e-5

# Values of one kind of distribution: q and p, [positions, V], and by the names
# in _FIELDS the method's functions, [leniences, positions, V].
_Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """The outcome of one check of an audit.

  Attributes:
    name: The property that was checked, in a few words.
    passed: True if the property holds.
    value: The largest error, or the largest z-score; nan if there is none.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
  """A method's functions on distributions of every kind."""

  leniences: Sequence[float]
  x64: bool
  values: dict[str, _Values]

  @property
  def expected_acceptance(self) -> np.ndarray:
    """Sum q * a of the random distributions, [leniences, positions]."""
    random = self.values['random']
    return (random['q'] * random['acceptance']).sum(-1)


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


def evaluate(
  method: methods.Method, leniences: Sequence[float], x64: bool, seed: int = 0
) -> Evaluation:
  """Evaluates a method on distributions of every kind."""

  def all_fields(d, lenience):
    return {name: getattr(method, name)(d, lenience) for name in _FIELDS}

  over_grid = jax.jit(jax.vmap(jax.vmap(all_fields, (0, None)), (None, 0)))
  with enable_x64(x64):
    dtype = jnp.float64 if x64 else jnp.float32
    values = {}
    for kind in DISTRIBUTION_KINDS:
      d = draw_distributions(kind, seed=seed)
      d = jax.tree.map(lambda x: jnp.asarray(x, dtype), d)
      fields = jax.device_get(over_grid(d, jnp.asarray(leniences, dtype)))
      values[kind] = fields | {'q': np.asarray(d.q), 'p': np.asarray(d.p)}
  return Evaluation(leniences=leniences, x64=x64, values=values)


def check_law(
  evaluation: Evaluation, tolerance: float | None = None
) -> Iterator[Check]:
  """Checks that all values are probabilities, and if so, equation (L)."""
  bits = 'float64' if evaluation.x64 else 'float32'
  if tolerance is None:
    tolerance = _TOLERANCE_64 if evaluation.x64 else _TOLERANCE_32
  # Name, fields of a counterexample, and errors [leniences, positions, V].
  tests = (
    ('acceptance is in [0, 1]', ('acceptance',), _unit_errors),
    ('residual is a distribution', ('residual',), _simplex_errors),
    ('law is a distribution', ('law',), _simplex_errors),
    ('law = q a + (1 - sum q a) residual', _FIELDS, _law_errors),
  )
  sound = True
  for name, fields, errors_of in tests:
    if errors_of is _law_errors and not sound:
      return
    errors = {
      kind: errors_of(values, fields[0])
      for kind, values in evaluation.values.items()
    }
    check = _check_errors(
      evaluation, f'{name} ({bits})', errors, fields=fields, tolerance=tolerance
    )
    sound &= check.passed
    yield check


def check_limits(
  method: methods.Method, evaluation: Evaluation
) -> Iterator[Check]:
  """Checks that the law is p or q at the leniences that declare it."""
  for field, side in (('strict', 'p'), ('drafter_only', 'q')):
    limit = getattr(method, field)
    if limit is None:
      continue
    at_limit = (np.asarray(evaluation.leniences) == limit)[:, None, None]
    errors = {
      kind: np.where(at_limit, np.abs(values['law'] - values[side]), 0)
      for kind, values in evaluation.values.items()
    }
    name = f'at {field} lenience {limit:g} the law is {side}'
    yield _check_errors(
      evaluation, name, errors, fields=('law',), tolerance=_TOLERANCE_64
    )


def _check_errors(
  evaluation: Evaluation,
  name: str,
  errors: dict[str, np.ndarray],
  *,
  fields: Sequence[str],
  tolerance: float,
) -> Check:
  """Checks the largest error."""
  kind = max(errors, key=lambda kind: errors[kind].max())
  error = errors[kind]
  index = np.unravel_index(error.argmax(), error.shape)
  passed = bool(error[index] <= tolerance)
  detail = '' if passed else _counterexample(evaluation, kind, index, fields)
  return Check(
    name=name,
    passed=passed,
    value=float(error[index]),
    detail=detail,
    limit=tolerance,
  )


# Errors, [leniences, positions, V], of the values of one kind.


def _unit_errors(values: _Values, field: str) -> np.ndarray:
  """Computes the distance of each entry from [0, 1]."""
  x = values[field]
  return np.where(np.isfinite(x), np.abs(x - np.clip(x, 0, 1)), np.inf)


def _simplex_errors(values: _Values, field: str) -> np.ndarray:
  """Computes the negative part of an entry, or the error of the sum over V."""
  x = values[field]
  sum_error = np.abs(x.sum(-1, keepdims=True) - 1)
  error = np.maximum(np.maximum(0, -x), sum_error)
  return np.where(np.isfinite(x), error, np.inf)


def _law_errors(values: _Values, _: str) -> np.ndarray:
  """Computes the distance of each entry of the emitted law from the law."""
  return np.abs(_emitted(values) - values['law'])


def _emitted(values: _Values) -> np.ndarray:
  """Computes q a + (1 - sum q a) residual, [leniences, positions, V]."""
  q = values['q']
  accepted = q * values['acceptance']
  rejection = (q - accepted).sum(-1, keepdims=True)
  return accepted + rejection * values['residual']


def _counterexample(
  evaluation: Evaluation,
  kind: str,
  index: Sequence[Any],
  fields: Sequence[str],
) -> str:
  """Describes the distributions of an error, and the method's values."""
  i, n, v = index
  values = evaluation.values[kind]

  def line(name, row):
    numbers = ' '.join(f'{x:.4g}' for x in row)
    return f'{name:<11}{numbers}'

  lenience = evaluation.leniences[i]
  text = [
    f'{kind} distributions {n}, lenience {lenience:g}, token {v}:',
    line('q', values['q'][n]),
    line('p', values['p'][n]),
    *(line(name, values[name][i, n]) for name in fields),
  ]
  if 'law' in fields and len(fields) > 1:
    text.append(line('emitted', _emitted(values)[i, n]))
  return '\n'.join(text)
