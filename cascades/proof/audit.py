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

import numpy as np

from cascades import arguments, compilation, methods, verification
from cascades.files import plain
from cascades.proof import law_checks, sampled
from cascades.proof.law_checks import Check

# All samples are in memory at once.
_MAX_SAMPLES = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditResult:
  """The checks of an audit.

  Attributes:
    method: The name of the method.
    checks: The checks in order; a failed check may hide later ones.
  """

  method: str
  checks: tuple[Check, ...]

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
        value = f'{check.value:.3g} (limit {check.limit:g})'
      if check.leniences:
        value += f' at lenience {", ".join(f"{x:g}" for x in check.leniences)}'
      mark = 'ok' if check.passed else 'FAILED'
      text.append(f'  {check.name:<{width}}{mark:<8}{value}')
      text += [f'    {line}' for line in check.detail.splitlines()]
    return '\n'.join(text)

  def to_dict(self) -> dict[str, Any]:
    """Returns the result as JSON can hold it."""
    return {'passed': self.passed} | plain(dataclasses.asdict(self))


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


def audit(
  method: str | methods.Method,
  leniences: Sequence[float] | None = None,
  *,
  samples: int = 20_000,
  seed: int = 0,
  verifications: Sequence[str] = ('token', 'block'),
) -> AuditResult:
  """Checks that a method emits the law that it declares.

  Args:
    method: A registered name, or any `Method`.
    leniences: Leniences at which the loop is sampled; None for two.
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
  seed = arguments.integer('seed', seed, 0, arguments.MAX_SEED)
  method = methods.get_method(method)
  configs = [verification.VerificationConfig(kind) for kind in verifications]
  # Raises if a name is unknown, or its number is wrong.
  _ = [config.window for config in configs]
  if leniences is None:
    # From the middle; limits prove least.
    leniences = (2.0, 3.0) if method.strict == math.inf else (0.2, 0.5)
  if not leniences or any(map(math.isnan, leniences)):
    raise ValueError('lenience: must be one number or more, and none be nan.')
  limit = _MAX_SAMPLES // len(leniences)
  samples = arguments.integer('samples', samples, 1, limit)
  checks = [law_checks.check_shapes(method)]
  tested = [*leniences, *trial_leniences(method, seed=seed)]
  # A stage with a failure ends the audit.
  for x64 in (True, False):
    if all(check.passed for check in checks):
      checks += law_checks.check_law(method, tested, x64, seed)
  if all(check.passed for check in checks):
    checks += sampled.check_samples(method, leniences, samples, configs, seed)
  return AuditResult(method=method.name, checks=tuple(checks))
