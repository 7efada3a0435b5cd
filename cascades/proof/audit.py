"""Audits of methods: checks that a method emits the law that it declares.

There are three kinds of evidence. In float64, on distributions of every kind,
equation (L) of `methods` is checked for every draft token, without sampling. In
float32 the same must hold to rounding. And the compiled loop is sampled with
small models whose laws are known.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, compilation, methods, verification
from cascades.files import plain
from cascades.proof import law_checks, sampled
from cascades.proof.law_checks import Check

# gamma of `AuditResult.tokens_per_block`.
_GAMMA = 4
# All samples are in memory at once.
_MAX_SAMPLES = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditResult:
  """The checks of an audit, and curves of the method's acceptance.

  Attributes:
    method: The name of the method.
    checks: The checks in order; a failed check may hide later ones.
    leniences: Leniences of the curves below.
    acceptance: Expected acceptance b = sum q * a at each lenience, the mean
      over random distributions.
    tokens_per_block: (1 - b^(gamma + 1)) / (1 - b) at each lenience, for
      gamma = 4.
    trend: Direction of the acceptance as lenience grows: whether it rises,
      falls or stays, and how far if it does both. Only some methods promise a
      direction.
    examples: q, p, each [3, V], and targets, [leniences, 3, V], for a plot;
      None if the method cannot be evaluated.
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
    """True if every check passed."""
    return all(check.passed for check in self.checks)

  def __str__(self) -> str:
    text = [f'{self.method}: {"passed" if self.passed else "FAILED"}']
    width = 2 + max(len(check.name) for check in self.checks)
    for check in self.checks:
      value = ''
      if not math.isnan(check.value):
        value = f'{check.value:.2g} (limit {check.limit:g})'
      if check.leniences:
        value += f' at lenience {", ".join(f"{x:g}" for x in check.leniences)}'
      mark = 'ok' if check.passed else 'FAILED'
      text.append(f'  {check.name:<{width}}{mark:<8}{value}')
      if check.detail:
        text += [f'    {line}' for line in check.detail.splitlines()]
    if self.acceptance:
      text.append(f'  acceptance {self.trend}; its mean:')
      text.append('    lenience  acceptance  tokens per block of gamma 4')
      text += [
        f'    {x:<10g}{a:<12.4f}{t:.3f}'
        for x, a, t in zip(
          self.leniences, self.acceptance, self.tokens_per_block, strict=True
        )
      ]
    return '\n'.join(text)

  def to_dict(self) -> dict[str, Any]:
    """Returns the result as JSON can hold it, without the examples."""
    fields = dataclasses.asdict(self)
    del fields['examples']
    return {'passed': self.passed} | plain(fields)


def trial_leniences(
  method: methods.Method, count: int = 50, seed: int = 0
) -> list[float]:
  """Returns the method's limits, 0, and random leniences of every size."""
  rng = np.random.default_rng(seed)
  ends = [x for x in (method.strict, method.drafter_only) if x is not None]
  near = rng.uniform(-0.5, 1.5, count // 2)
  far = 10 ** rng.uniform(-3, 3, count - count // 2)
  far = far * rng.choice([-1, 1], len(far))
  fixed = dict.fromkeys([*map(float, ends), 0.0])
  return [*fixed, *near.tolist(), *far.tolist()]


def reported_leniences(method: methods.Method) -> tuple[float, ...]:
  """Returns a few leniences from strict to drafter-only, for tables."""
  inside = (1, 2, 3, 5) if method.strict == math.inf else (0, 0.2, 0.5, 0.8)
  ends = [x for x in (method.strict, method.drafter_only) if x is not None]
  return tuple(sorted({*map(float, inside), *map(float, ends)}))


def audit(
  method: str | methods.Method,
  reported: Sequence[float] | None = None,
  *,
  samples: int = 20_000,
  seed: int = 0,
  verifications: Sequence[str] = ('token', 'block'),
) -> AuditResult:
  """Checks that a method emits the law that it declares.

  Args:
    method: A registered name, or any `Method`.
    reported: Leniences of the tables; None for a few from strict to
      drafter-only. The loop is sampled at up to two of them that are no limits.
    samples: Sequences drawn through the loop at each sampled lenience; fewer
      than 20,000 can miss a random key that is used twice.
    seed: Seed of the random distributions, leniences and samples.
    verifications: Verifications to sample the loop with. Multi-draft ones have
      two drafts a block.

  Returns:
    The result; `passed` is the verdict, `str()` a report.

  Raises:
    ValueError: No such method or verification, no leniences, or a lenience that
      is not a number.
  """
  compilation.enable_cache()
  samples = arguments.integer('samples', samples, 1, _MAX_SAMPLES)
  seed = arguments.integer('seed', seed, 0, arguments.MAX_SEED)
  method = methods.get_method(method)
  configs = [verification.VerificationConfig(kind) for kind in verifications]
  # Raises if a name is unknown, or its number is wrong.
  _ = [config.window for config in configs]
  reported = tuple(reported_leniences(method) if reported is None else reported)
  if not reported:
    raise ValueError('lenience: must not be an empty list; give a number.')
  if any(math.isnan(x) for x in reported):
    raise ValueError('lenience: must be numbers, got nan.')
  checks = [law_checks.check_shapes(method)]
  curves: dict[str, Any] = {}
  leniences = [*reported, *trial_leniences(method, seed=seed)]
  # A stage with a failure ends the audit.
  if checks[-1].passed:
    evaluation = law_checks.evaluate(method, leniences, True, seed)
    checks += law_checks.check_law(evaluation)
  if all(check.passed for check in checks):
    checks += law_checks.check_limits(method, evaluation)
    in_float32 = law_checks.evaluate(method, leniences, False, seed)
    checks += law_checks.check_law(in_float32)
  if all(check.passed for check in checks):
    checks += sampled.check_samples(method, reported, samples, configs, seed)
    acceptance = evaluation.expected_acceptance
    means = acceptance[: len(reported)].mean(-1)
    curves = {
      'acceptance': tuple(means.tolist()),
      'tokens_per_block': tuple(
        float(sum(b**i for i in range(_GAMMA + 1))) for b in means
      ),
      'trend': _trend(acceptance, leniences),
      'examples': _examples(method, reported, seed),
    }
  return AuditResult(
    method=method.name, checks=tuple(checks), leniences=reported, **curves
  )


def _trend(acceptance: np.ndarray, leniences: Sequence[float]) -> str:
  """Describes the change of acceptance with lenience, over all positions."""
  acceptance = acceptance[np.argsort(leniences, kind='stable')]
  drop = float((np.maximum.accumulate(acceptance) - acceptance).max())
  climb = float((acceptance - np.minimum.accumulate(acceptance)).max())
  if min(drop, climb) > 1e-12:
    return (
      f'rises with lenience for some distributions, by up to {climb:.2g}, and'
      f' falls for others, by up to {drop:.2g}'
    )
  direction = 'rises' if climb > 1e-12 else 'falls' if drop > 1e-12 else 'stays'
  return f'{direction} with lenience'


def _examples(
  method: methods.Method, reported: Sequence[float], seed: int
) -> dict[str, np.ndarray]:
  """Computes targets where the two models agree well, partly and badly.

  Sampling is at temperature 1 without truncation: the gates equal q and p.
  """
  d = law_checks.draw_distributions('random', seed=seed)
  order = np.argsort(methods.total_variation(d.p, d.q))
  positions = order[[len(order) // 8, len(order) // 2, -len(order) // 8]]
  q: Any = d.q[positions]
  p: Any = d.p[positions]
  # Logits of p, most of them above 0.
  d = methods.Distributions(
    q=q, p=p, q_gate=q, p_gate=p, p_logits=np.log(p) + 9
  )
  over_grid = jax.jit(jax.vmap(jax.vmap(method.law, (0, None)), (None, 0)))
  with law_checks.enable_x64(True):
    targets = over_grid(
      jax.tree.map(jnp.asarray, d), jnp.asarray(reported, d.q.dtype)
    )
  return {'q': q, 'p': p, 'targets': np.asarray(targets)}
