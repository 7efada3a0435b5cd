"""Proof that a method emits what it declares; for a user's own method too.

Three kinds of evidence: on rows of every kind, in float64, equation (L) of
`methods` is checked for every draft token (no sampling); the same rows in
float32 must give no nan; and the compiled loop itself is sampled on small
models whose laws are known.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import (
  arguments,
  compilation,
  decoding,
  drafters,
  methods,
  verification,
)
from cascades.methods import caps, processing
from cascades.plain import plain
from cascades.proof import exact
from cascades.verification_config import NO_CAP

_FIELDS = ('acceptance', 'residual', 'law')
# Largest error that passes in float64 and in float32, and least z-score that
# does not.
_EXACT, _NEAR, _FAR = 1e-9, 1e-5, 5.0
# Drafts of a block, of which `Audit.tokens_per_block` tells.
_GAMMA = 4
# What is sampled: so many tokens after this prompt, of a vocabulary of so many,
# in blocks of so many drafts.
_NEW, _PROMPT, _SIZE, _DRAFTED = 3, (1, 2, 3), 5, 3
# Of which all are in memory at once.
_MOST_SAMPLES = 10_000_000

# Of one kind of row: q and p, [rows, V], and by the names in _FIELDS what the
# method says of them, [leniences, rows, V].
_Values = dict[str, np.ndarray]
# Where an error is: kind of row, lenience, row, token; the last three as
# numbers.
_Where = tuple[str, *tuple[int | np.integer, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """One thing that was looked at.

  Attributes:
    name: What was looked at, in a few words.
    passed: Whether it holds.
    value: The largest error, or the largest z-score; nan if there is none.
    detail: Where it fails: the row that shows it; empty where it holds.
  """

  name: str
  passed: bool
  value: float = math.nan
  detail: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
  """What an audit found.

  Attributes:
    method: The name of the method.
    checks: In the order they were made; the first that fails may hide others.
    leniences: Where the curves below are given.
    acceptance: Expected acceptance b = sum q * a at each lenience: the mean
      over random rows.
    tokens_per_block: (1 - b^(gamma + 1)) / (1 - b) at each lenience, for
      gamma = 4.
    trend: How the acceptance of a row moves as lenience grows: 'rises',
      'falls', 'stays', or by how much it falls where it mostly rises. Only
      some methods promise one.
    examples: q, p, each [3, V], and targets, [leniences, 3, V], for a plot;
      None where the method cannot be evaluated.
  """

  method: str
  checks: tuple[Check, ...]
  leniences: tuple[float, ...]
  acceptance: tuple[float, ...] = ()
  tokens_per_block: tuple[float, ...] = ()
  trend: str = ''
  examples: dict[str, np.ndarray] | None = None

  @property
  def passed(self) -> bool:
    """Whether the emitted law is the declared one, as far as was looked."""
    return all(check.passed for check in self.checks)

  def __str__(self) -> str:
    lines = [f'{self.method}: {"passed" if self.passed else "FAILED"}']
    for check in self.checks:
      value = '' if math.isnan(check.value) else f'{check.value:.2g}'
      mark = 'ok' if check.passed else 'FAILED'
      lines.append(f'  {check.name:<48}{mark:<8}{value}')
      if check.detail:
        lines += [f'    {line}' for line in check.detail.splitlines()]
    if self.acceptance:
      lines.append(f'  acceptance {self.trend} with lenience:')
      lines.append('    lenience  acceptance  tokens per block of gamma 4')
      lines += [
        f'    {x:<10g}{a:<12.4f}{t:.3f}'
        for x, a, t in zip(
          self.leniences, self.acceptance, self.tokens_per_block, strict=True
        )
      ]
    return '\n'.join(lines)

  def to_dict(self) -> dict[str, Any]:
    """As JSON can hold it, without the examples."""
    fields = dataclasses.asdict(self)
    del fields['examples']
    return {'passed': self.passed} | plain(fields)


def leniences(
  method: methods.Method, count: int = 50, seed: int = 0
) -> list[float]:
  """The method's limits, 0, and random leniences near and far.

  Args:
    method: Says its limits, where its law is p and where it is q.
    count: How many random ones: half of them in (-0.5, 1.5), the rest of
      either sign with a size anywhere from 0.001 to 1000.
    seed: Fixes the random ones.
  """
  rng = np.random.default_rng(seed)
  ends = [x for x in (method.strict, method.drafter_only) if x is not None]
  near = rng.uniform(-0.5, 1.5, count // 2)
  far = 10 ** rng.uniform(-3, 3, count - count // 2)
  far = far * rng.choice([-1, 1], len(far))
  fixed = dict.fromkeys([*map(float, ends), 0.0])
  return [*fixed, *near.tolist(), *far.tolist()]


def shown_leniences(method: methods.Method) -> tuple[float, ...]:
  """A few leniences from strict to drafter-only, for tables and plots."""
  inside = (1, 2, 3, 5) if method.strict == math.inf else (0, 0.2, 0.5, 0.8)
  ends = [x for x in (method.strict, method.drafter_only) if x is not None]
  return tuple(sorted({*map(float, inside), *map(float, ends)}))


def audit(
  method: str | methods.Method,
  shown: Sequence[float] | None = None,
  *,
  samples: int = 20_000,
  seed: int = 0,
  verifications: Sequence[str] = ('token', 'block'),
  cap: str = NO_CAP,
) -> Audit:
  """Looks whether a method emits the law that it declares.

  Args:
    method: A registered name, or any `Method`.
    shown: Leniences to tabulate; by default a few from strict to drafter-only.
      At up to two that are no limits the loop is sampled.
    samples: Sequences drawn through the loop at each sampled lenience; fewer
      than 20,000 can miss a random key that is used twice.
    seed: Fixes the random rows, leniences and samples.
    verifications: By which the loop is sampled, of those that the method can be
      verified by; those of several drafts have two.
    cap: Which tokens the method may make likelier than the verifier does, as
      for `Sampler`; then it is the capped method that is audited.

  Returns:
    The findings; `passed` says whether all is well, `str()` shows them.

  Raises:
    ValueError: No such method, verification or cap, no leniences, or one that
      is not a number.
  """
  compilation.enable_cache()
  samples = arguments.integer('samples', samples, 1, _MOST_SAMPLES)
  seed = arguments.integer('seed', seed, 0, arguments.MAX_SEED)
  method, inside = methods.get_method(method), caps.parse(cap)
  if inside is not None:
    method = caps.capped(method, cap)
  schemes = [verification.VerificationConfig(kind) for kind in verifications]
  shown = tuple(shown_leniences(method) if shown is None else shown)
  if not shown:
    raise ValueError('lenience: the list is empty; give at least one.')
  if any(math.isnan(x) for x in shown):
    raise ValueError('lenience: nan is no lenience; give numbers.')
  checks: list[Check] = []

  def finish(**found) -> Audit:
    return Audit(
      method=method.name, checks=tuple(checks), leniences=shown, **found
    )

  checks.append(_shapes(method, inside is not None))
  if not checks[-1].passed:
    return finish()
  tried = [*shown, *leniences(method, seed=seed)]
  for x64 in (True, False):
    found = _evaluate(method, tried, x64, seed, inside)
    checks += _enumerate(found, tried, _EXACT if x64 else _NEAR, x64)
    if not all(check.passed for check in checks):
      return finish()
    if x64:
      checks += _limits(method, found, tried)
      random = found['random']
      # sum q * a, [leniences, rows].
      kept = (random['q'] * random['acceptance']).sum(-1)
      examples = _examples(method, shown, seed, inside)
  if all(check.passed for check in checks):
    checks += _sample(method, shown, samples, seed, schemes, inside)
  means = kept[: len(shown)].mean(-1)
  return finish(
    acceptance=tuple(means.tolist()),
    tokens_per_block=tuple(
      float(sum(b**i for i in range(_GAMMA + 1))) for b in means
    ),
    trend=_trend(kept, tried),
    examples=examples,
  )


def _shapes(method: methods.Method, capped: bool) -> Check:
  """Each function must give [V]; a rule [] or [V]."""
  name = 'functions give [V]'
  row = methods.Distributions(*(jax.ShapeDtypeStruct((9,), jnp.float32),) * 5)
  if capped:
    row = row._replace(cap=jax.ShapeDtypeStruct((9,), bool))
  lenience = jax.ShapeDtypeStruct((), jnp.float32)
  for field in (*_FIELDS, 'rule'):
    fn: Callable | None = getattr(method, field)
    if fn is None:
      continue
    try:
      shape = jax.eval_shape(fn, row, lenience).shape
    except Exception as e:
      # Whatever a user's function does wrong is a finding.
      message = ' '.join(str(e).split())[:200]
      detail = f'{field} fails: {type(e).__name__}: {message}'
      return Check(name=name, passed=False, detail=detail)
    allowed = [(9,), ()] if field == 'rule' else [(9,)]
    if shape not in allowed:
      detail = f'{field} gives shape {shape} for 9 tokens, not (9,).'
      return Check(name=name, passed=False, detail=detail)
  return Check(name=name, passed=True)


def _evaluate(
  method: methods.Method,
  tried: Sequence[float],
  x64: bool,
  seed: int,
  cap: Any,
) -> dict[str, _Values]:
  """What a method says of rows of every kind.

  Args:
    method: The method that is audited.
    tried: Leniences.
    x64: Whether in float64, else in float32.
    seed: Fixes the random rows.
    cap: Of the rows; None for none.

  Returns:
    By kind of row, q and p and what each function says.
  """

  def one(d, lenience):
    return {name: getattr(method, name)(d, lenience) for name in _FIELDS}

  over = jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0)))
  with jax.enable_x64(x64):
    dtype = jnp.float64 if x64 else jnp.float32
    found = {}
    for kind in exact.KINDS:
      d = jax.tree.map(
        lambda x: jnp.asarray(x, dtype), exact.rows(kind, seed=seed)
      )
      d = _with_cap(d, cap)
      values = jax.device_get(over(d, jnp.asarray(tried, dtype)))
      found[kind] = values | {'q': np.asarray(d.q), 'p': np.asarray(d.p)}
  return found


def _with_cap(d: methods.Distributions, cap: Any) -> methods.Distributions:
  """Rows, and which of their tokens are inside of a cap."""
  if cap is None:
    return d
  return d._replace(cap=jax.vmap(cap.inside)(jnp.asarray(d.p_gate)))


def _enumerate(
  found: dict[str, _Values],
  tried: Sequence[float],
  tolerance: float,
  x64: bool,
) -> Iterator[Check]:
  """That all are probabilities, and if so, equation (L).

  Args:
    found: What the method says, by kind of row.
    tried: The leniences that it was asked at.
    tolerance: Largest error that passes.
    x64: Whether it was in float64, for the names of the checks.
  """
  bits = 'float64' if x64 else 'float32'

  # Name, the fields that a failing row is shown with, and the errors [L, N, V].
  tests = (
    ('acceptance is in [0, 1]', ('acceptance',), _off_unit),
    ('residual is a distribution', ('residual',), _off_simplex),
    ('law is a distribution', ('law',), _off_simplex),
    ('law = q a + (1 - sum q a) residual', _FIELDS, _off_law),
  )
  sound = True
  for name, shown, errors in tests:
    if errors is _off_law and not sound:
      return
    off = {kind: errors(values, shown[0]) for kind, values in found.items()}
    check = _largest(f'{name} ({bits})', off, tolerance, found, tried, shown)
    sound &= check.passed
    yield check


def _largest(
  name: str,
  errors: dict[str, np.ndarray],
  tolerance: float,
  found: dict[str, _Values],
  tried: Sequence[float],
  shown: Sequence[str],
) -> Check:
  """Checks the largest error.

  Args:
    name: Of the check.
    errors: By kind of row, [leniences, rows, V].
    tolerance: Largest error that passes.
    found: What the method says, by kind of row.
    tried: The leniences that it was asked at.
    shown: The fields that a failing row is shown with.
  """
  kind = max(errors, key=lambda kind: errors[kind].max())
  error = errors[kind]
  where = np.unravel_index(error.argmax(), error.shape)
  passed = bool(error[where] <= tolerance)
  detail = '' if passed else _show(found, tried, (kind, *where), shown)
  return Check(
    name=name, passed=passed, value=float(error[where]), detail=detail
  )


# Errors [leniences, rows, V] in what was found of one kind of row.


def _off_unit(f: _Values, field: str) -> np.ndarray:
  """How far each entry is from [0, 1]."""
  x = f[field]
  return np.where(np.isfinite(x), np.abs(x - np.clip(x, 0, 1)), np.inf)


def _off_simplex(f: _Values, field: str) -> np.ndarray:
  """How negative each entry is, or how far its row is from summing to 1."""
  x = f[field]
  off_sum = np.abs(x.sum(-1, keepdims=True) - 1)
  error = np.maximum(np.maximum(0, -x), off_sum)
  return np.where(np.isfinite(x), error, np.inf)


def _off_law(f: _Values, _: str) -> np.ndarray:
  """How far each entry of what is emitted is from the law."""
  return np.abs(_emitted(f) - f['law'])


def _emitted(f: _Values) -> np.ndarray:
  """Returns q a + (1 - sum q a) residual, [leniences, rows, V]."""
  kept = f['q'] * f['acceptance']
  return kept + (f['q'] - kept).sum(-1, keepdims=True) * f['residual']


def _show(
  found: dict[str, _Values],
  tried: Sequence[float],
  where: _Where,
  fields: Sequence[str],
) -> str:
  """The row that shows a failure, with what was made of it.

  Args:
    found: What the method says, by kind of row.
    tried: The leniences that it was asked at.
    where: Where the failure is.
    fields: Names of the functions whose values are shown.
  """
  kind, i, n, v = where
  f = found[kind]

  def line(name, values):
    numbers = ' '.join(f'{x:.4g}' for x in values)
    return f'{name:<11}{numbers}'

  lines = [
    f'{kind} row {n}, lenience {tried[i]:g}, token {v}:',
    line('q', f['q'][n]),
    line('p', f['p'][n]),
    *(line(name, f[name][i, n]) for name in fields),
  ]
  if 'law' in fields and len(fields) > 1:
    lines.append(line('emitted', _emitted(f)[i, n]))
  return '\n'.join(lines)


def _limits(
  method: methods.Method, found: dict[str, _Values], tried: Sequence[float]
) -> Iterator[Check]:
  """That the law is p, or q, at the leniences where the method says so.

  Args:
    method: The method that is audited.
    found: What it says, by kind of row, in float64.
    tried: The leniences that it was asked at, its limits among them.
  """
  for field, side in (('strict', 'p'), ('drafter_only', 'q')):
    limit = getattr(method, field)
    if limit is None:
      continue
    there = (np.asarray(tried) == limit)[:, None, None]
    off = {
      kind: np.where(there, np.abs(f['law'] - f[side]), 0)
      for kind, f in found.items()
    }
    name = f'at {field} lenience {limit:g} the law is {side}'
    yield _largest(name, off, _EXACT, found, tried, ('law',))


def _trend(kept: np.ndarray, tried: Sequence[float]) -> str:
  """How acceptance moves with lenience, row by row, in words.

  Args:
    kept: [leniences, rows], expected acceptance.
    tried: The leniences, in any order.
  """
  kept = kept[np.argsort(tried, kind='stable')]
  drop = float((np.maximum.accumulate(kept) - kept).max())
  climb = float((kept - np.minimum.accumulate(kept)).max())
  if min(drop, climb) > 1e-12:
    return f'rises, but in some row falls by up to {drop:.2g},'
  return 'rises' if climb > 1e-12 else 'falls' if drop > 1e-12 else 'stays'


def _examples(
  method: methods.Method,
  shown: Sequence[float],
  seed: int,
  cap: Any,
) -> dict[str, np.ndarray]:
  """Three rows on which the two models agree well, so-so and badly.

  At temperature 1 and untruncated: the gates are what is sampled from.

  Args:
    method: The method that is audited.
    shown: Leniences.
    seed: Fixes the random rows.
    cap: Of the rows; None for none.

  Returns:
    `Audit.examples`.
  """
  d = exact.rows('random', seed=seed)
  order = np.argsort(methods.total_variation(d.p, d.q))
  rows = order[[len(order) // 8, len(order) // 2, -len(order) // 8]]
  q, p = d.q[rows], d.p[rows]
  # Logits of p, most of them above 0.
  d = _with_cap(methods.Distributions(q, p, q, p, np.log(p) + 9), cap)
  over = jax.jit(jax.vmap(jax.vmap(method.law, (0, None)), (None, 0)))
  with jax.enable_x64(True):
    targets = over(jax.tree.map(jnp.asarray, d), jnp.asarray(shown, d.q.dtype))
  return {'q': d.q, 'p': d.p, 'targets': np.asarray(targets)}


def _sample(
  method: methods.Method,
  shown: Sequence[float],
  samples: int,
  seed: int,
  schemes: Sequence[verification.VerificationConfig],
  cap: Any,
) -> Iterator[Check]:
  """Draws a few tokens through the compiled loop, very often.

  Args:
    method: The method that is audited.
    shown: Leniences, of which up to two that are no limits are sampled.
    samples: Sequences drawn at each of these.
    seed: Fixes the two models and the samples.
    schemes: How blocks are verified.
    cap: Which tokens the method may make likelier; None for any.
  """
  model = exact.TableModel.injective(_SIZE, _DRAFTED)
  keys = jax.random.split(jax.random.key(seed), 3)
  inner = _between(method, shown)
  sampling = processing.SamplingParams(temperature=np.float32(1), cap=cap)
  # Flat enough that no fault is hidden where the first tokens are certain.
  tables, d = exact.random_models(
    model, keys[:2], sampling, _PROMPT, _DRAFTED, scale=1.0
  )
  table = exact.Table.of([(method, x) for x in inner], d)
  declared = exact.declared_law(table, model, _PROMPT, _NEW)
  models = decoding.Models(model, drafters.ModelDrafter(model))
  asked = exact.BatchRequest(
    [_PROMPT] * samples, jax.random.split(keys[2], samples), inner, _NEW
  )
  for config in schemes:
    drafts = 1 + config.kind.any_drafts
    try:
      config.check(method, drafts)
    except ValueError:
      continue
    if config.verification == verification.SEQUENTIAL and cap is not None:
      # It follows the rule, and nothing caps that.
      continue
    step_config = decoding.StepConfig(models, method, _DRAFTED, config, drafts)
    # No row stops, so that all end where the prompt and the new tokens do.
    rows = exact.decode_curve(step_config, tables, asked, sampling)
    tokens = rows.tokens[:, :, len(_PROMPT) : len(_PROMPT) + _NEW]
    laws = declared
    if not config.kind.keeps_law:
      # What it declares is of a block, and not of a token.
      laws = exact.emitted_law(table, config, model, _PROMPT, _NEW, _DRAFTED)
    scores = [
      np.abs(exact.z_scores(tokens[:, i], law)) for i, law in enumerate(laws)
    ]
    worst = int(np.argmax([z.max() for z in scores]))
    z = float(scores[worst].max())
    detail = ''
    if z >= _FAR:
      detail = _show_samples(inner[worst], tokens[:, worst], laws[worst])
    yield Check(
      name=f'sampled law, {config.verification} verification: largest z',
      passed=z < _FAR,
      value=z,
      detail=detail,
    )


def _between(method: methods.Method, shown: Sequence[float]) -> list[float]:
  """Up to two leniences to sample at, in the middle of those shown.

  The limits say least: none of them, if there is anything in between.
  """
  ends = (method.strict, method.drafter_only)
  inner = [x for x in shown if x not in ends] or list(shown)
  return inner[: len(inner) // 2 + 1][-2:]


def _show_samples(lenience: float, tokens: np.ndarray, law: np.ndarray) -> str:
  """How often each first token was drawn, and how often it should have been.

  Args:
    lenience: What the method was sampled at.
    tokens: [samples, n], what was drawn.
    law: [V] * n, what was declared.
  """
  first = law.sum(tuple(range(1, law.ndim)))
  drawn = np.bincount(tokens[:, 0], minlength=len(first)) / len(tokens)
  return '\n'.join(
    [
      f'lenience {lenience:g}, first token of {len(tokens)} samples:',
      'declared   ' + ' '.join(f'{x:.4g}' for x in first),
      'drawn      ' + ' '.join(f'{x:.4g}' for x in drawn),
    ]
  )
