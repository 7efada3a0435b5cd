"""Certifies that a verification function emits the law that a rule declares.

The function may belong to any engine. It takes and returns NumPy arrays:

  verify(q_probs, p_probs, drafts, rng) -> tokens

  q_probs  [gamma, V], the distribution that each draft was sampled from.
  p_probs  [gamma + 1, V], the verifier's distribution before each draft and
           after the last.
  drafts   [gamma], ids of the drafted tokens.
  rng      A generator with the interface of `numpy.random.default_rng()`, the
           only source of randomness.
  tokens   The emitted block: the accepted drafts and one more token.

The distributions come from small random language models, tables with one row
per context. The law of the next gamma + 1 tokens, a block and its continuation
by the declared law, is therefore computable, and is compared with the declared
law prefix by prefix. All distributions of one call, those of q and those of p,
differ pairwise by at least `LEAST_DISTANCE` of `table_models` in total
variation, so a function that confuses two of them emits a different law.

If all random draws of the function are enumerable (see `branching`), the
distance is exact. Otherwise it is estimated from samples, with a confidence
bound.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cascades import arguments, methods
from cascades.contrib.engine_audits import branching
from cascades.files import plain
from cascades.proof import enumeration, law_checks, table_models
from cascades.proof.law_checks import enable_x64
from cascades.proof.table_models import Table, TableModel

Verify = Callable[[np.ndarray, np.ndarray, np.ndarray, Any], Sequence[int]]
# Largest total variation of an exact law in float64, and in float32. A function
# that computes in float32 fails, with a hint that names the rounding.
_EXACT, _SINGLE = 1e-9, 1e-6
_PROMPT = (0, 1)
# Confidence of the bounds of sampled blocks.
_CONFIDENCE = 0.999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worst:
  """The prefix with the largest difference between emitted and declared law.

  After it, `token` has the probabilities `emitted` and `declared`; q and p are
  the distributions of the drafter and of the verifier there, [V].
  """

  prefix: tuple[int, ...]
  token: int
  declared: float
  emitted: float
  q: tuple[float, ...]
  p: tuple[float, ...]

  def __str__(self) -> str:
    q, p = (', '.join(f'{x:.4f}' for x in probs) for probs in (self.q, self.p))
    return (
      f'after {list(self.prefix)}, token {self.token} has probability'
      f' {self.emitted:.4f} instead of the declared {self.declared:.4f}; q is'
      f' {q}; p is {p}'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
  """Bounds on the distance between a verification function and a rule.

  The distance is the total variation between the emitted and the declared law
  of gamma + 1 tokens, averaged over the models.

  Attributes:
    rule: Name of the method.
    lenience: Lenience of the rule.
    gamma: Drafted tokens of a block.
    size: Size V of the vocabulary.
    models: Number of small random models.
    exact: True if all random draws were enumerated.
    reason: Why blocks were sampled instead.
    low: Lower bound of the distance.
    high: Upper bound of the distance.
    confidence: Probability that both bounds hold.
    worst: The prefix that differs most; None if the laws are equal.
  """

  rule: str
  lenience: float
  gamma: int
  size: int
  models: int
  exact: bool
  reason: str
  low: float
  high: float
  confidence: float
  worst: Worst | None

  @property
  def passed(self) -> bool:
    """True if the lower bound is 0, up to the rounding of float64."""
    return self.low <= _EXACT

  def to_dict(self) -> dict[str, Any]:
    """Returns the certificate with values that JSON supports."""
    return {'passed': self.passed} | plain(dataclasses.asdict(self))

  def __str__(self) -> str:
    distance = f'{self.low:.2g}, exact: all draws enumerated'
    passed = 'passed' if self.exact else 'not disproved'
    if not self.exact:
      distance = (
        f'from {self.low:.4f} to {self.high:.4f} with confidence'
        f' {self.confidence:g}, from samples ({self.reason})'
      )
    elif _EXACT < self.low <= _SINGLE:
      distance += (
        '\n  an error of this size is float32 rounding: compute probabilities'
        ' and their sums in float64'
      )
    return (
      f'{self.rule} at lenience {self.lenience:g}, gamma {self.gamma},'
      f' {self.size} tokens, {self.models} models:'
      f' {passed if self.passed else "FAILED"}\n'
      f'  total variation {distance}'
    ) + ('' if self.passed else f'\n  {self.worst}')


def declared(
  rule: str | methods.Method, lenience: float | None
) -> tuple[methods.Method, float]:
  """Returns the method of a rule, and the lenience of the declared law."""
  method = methods.get_method(rule)
  lenience = method.or_strict(lenience)
  if math.isnan(lenience):
    raise ValueError('lenience: must be a number, got nan.')
  return method, lenience


def check_law(method: methods.Method, lenience: float, law: np.ndarray) -> None:
  """Refuses a law with nan, which any engine would seem to have."""
  if np.isnan(law).any():
    raise ValueError(
      f'rule: {method.name} has a law with nan at lenience {lenience:g}; check'
      ' it with cascades.audit.'
    )


def certify(
  verify: Verify,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
  *,
  gamma: int = 2,
  size: int = 3,
  models: int = 8,
  seed: int = 0,
  samples: int = 20_000,
) -> Certificate:
  """Compares the law that a function emits with the law of a rule.

  Args:
    verify: Verification function with the signature in the module's docstring;
      called some thousand times.
    rule: The declared rule: a method with a single target, or its name.
    lenience: Lenience of the rule; None selects `method.strict`.
    gamma: Drafted tokens of a block.
    size: Size V of the vocabulary.
    models: Number of small random models.
    seed: Seed of the models and of the samples.
    samples: Blocks of a model, where draws cannot be enumerated.
  """
  method, lenience = declared(rule, lenience)
  gamma = arguments.integer('gamma', gamma, 1)
  size = arguments.integer('size', size, 2)
  models = arguments.integer('models', models, 1)
  seed = arguments.integer('seed', seed, 0, arguments.MAX_SEED)
  samples = arguments.integer('samples', samples, 1)
  try:
    inspect.signature(verify).bind(*range(4))
  except TypeError:
    raise ValueError(
      'verify: must take (q_probs, p_probs, drafts, rng).'
    ) from None
  except ValueError:
    # A compiled function may not say what it takes.
    pass
  model = TableModel.injective(size, gamma)
  pairs = table_models.draft_pairs(model, _PROMPT, gamma)
  cases = [
    _Case.random(method, lenience, gamma, model, pairs, seed + number)
    for number in range(models)
  ]
  reason = ''
  try:
    laws = [case.exact_law(verify) for case in cases]
    if not np.array_equal(laws[0], cases[0].exact_law(verify)):
      raise ValueError(branching.UNREPEATABLE)
  except (branching.NotEnumerableError, TypeError) as e:
    # An operation that `branching.Uniform` lacks is a TypeError. If the fault
    # is the function's own, sampling raises it again.
    reason, rng = str(e), np.random.default_rng(seed)
    laws = [case.sampled_law(verify, rng, samples) for case in cases]
  distances = [
    np.abs(law - case.declared).sum() / 2
    for case, law in zip(cases, laws, strict=True)
  ]
  cells = size ** (gamma + 1)
  error = _sampling_error(cells, models, samples) if reason else 0.0
  mean = float(np.mean(distances))
  i = int(np.argmax(distances))
  return Certificate(
    rule=method.name,
    lenience=float(lenience),
    gamma=gamma,
    size=size,
    models=models,
    exact=not reason,
    reason=reason,
    low=max(0.0, mean - error),
    high=min(1.0, mean + error),
    confidence=_CONFIDENCE if reason else 1.0,
    worst=_find_worst(cases[i], laws[i]) if distances[i] > 0 else None,
  )


def _sampling_error(cells: int, models: int, samples: int) -> float:
  """Bounds the total variation between sampled frequencies and their law.

  With n samples of `cells` outcomes it exceeds e with a probability of at most
  (2^cells - 2) exp(-2 n e^2) (Weissman et al. 2003). It is of all models.
  """
  failure_prob = (1 - _CONFIDENCE) / models
  nats = cells * math.log(2) - math.log(failure_prob)
  return math.sqrt(nats / (2 * samples))


def _run(
  verify: Verify, q: np.ndarray, p: np.ndarray, drafts: np.ndarray, rng: Any
) -> tuple[int, ...]:
  """Returns the tokens of a block, checked."""
  # Copies, since `verify` may work in place.
  output = verify(q.copy(), p.copy(), drafts.copy(), rng)
  size = p.shape[-1]
  with contextlib.suppress(TypeError, ValueError):
    tokens = tuple(int(x) for x in output)
    count = len(tokens) - 1
    starts_with_drafts = tokens[:count] == tuple(drafts[:count].tolist())
    in_vocab = all(0 <= x < size for x in tokens)
    if 0 <= count <= len(drafts) and starts_with_drafts and in_vocab:
      return tokens
  raise ValueError(
    'verify: must return the accepted drafts, from the first, and one more'
    f' token, each from 0 to {size - 1}; got {arguments.quote(output)} for the'
    f' drafts {drafts.tolist()}. If that is rare, a sum of float32'
    ' probabilities may end below 1: sum in float64.'
  )


@dataclasses.dataclass(frozen=True)
class _Case:
  """A small random model and the declared law of its first tokens."""

  start: enumeration.BlockStart
  declared: np.ndarray

  @classmethod
  def random(
    cls,
    method: methods.Method,
    lenience: float,
    gamma: int,
    model: TableModel,
    pairs: np.ndarray,
    seed: int,
  ) -> '_Case':
    """Draws the distributions of a model."""
    size = model.vocab_size
    d = law_checks.draw_distributions(
      'random', count=model.contexts, size=size, seed=seed, pairs=pairs
    )
    # `verify` gets no gate distributions and no logits: rules see q and p.
    d = d._replace(q_gate=d.q, p_gate=d.p, p_logits=None)
    with enable_x64(True):
      table = Table.from_methods([(method, lenience)], d)
    law = enumeration.declared_law(table, model, _PROMPT, gamma + 1)[0]
    check_law(method, lenience, law)
    start = enumeration.BlockStart(
      table=table, bonus=table.law, model=model, prefix=_PROMPT, gamma=gamma
    )
    return cls(start, law)

  def _runs(
    self, verify: Verify
  ) -> Iterator[tuple[Callable[[Any], tuple[int, ...]], float]]:
    """Yields a call of `verify` for each draft, and the draft's probability."""
    q, p = self.start.table.q, self.start.table.p
    for draft, prob, contexts in self.start.drafts():
      args = q[contexts[:-1]], p[contexts], np.array(draft)
      yield functools.partial(_run, verify, *args), prob

  def exact_law(self, verify: Verify) -> np.ndarray:
    """Computes the emitted law of gamma + 1 tokens, [V] * (gamma + 1)."""
    law = np.zeros_like(self.declared)
    for run, draft_prob in self._runs(verify):
      for tokens, prob in branching.outcomes(run).items():
        law[tokens] += draft_prob * prob * self._continuation(tokens)
    return law

  def _continuation(self, tokens: tuple[int, ...]) -> np.ndarray | np.floating:
    """Returns the declared law of the remaining tokens, given the first."""
    mass = self.declared[tokens]
    # What follows a token of probability 0 is not declared, and may be any.
    mass = mass if mass.sum() > 0 else np.ones_like(mass)
    return mass / mass.sum()

  def sampled_law(
    self, verify: Verify, rng: np.random.Generator, samples: int
  ) -> np.ndarray:
    """Samples frequencies of gamma + 1 tokens, [V] * (gamma + 1)."""
    frequencies = np.zeros_like(self.declared)
    runs, draft_probs = zip(*self._runs(verify), strict=True)
    counts = rng.multinomial(samples, np.array(draft_probs) / sum(draft_probs))
    for run, count in zip(runs, counts, strict=True):
      for _ in range(count):
        tokens = run(rng)
        rest = self._continuation(tokens)
        # The continuation is sampled too, as the bound assumes
        # independent sequences.
        flat_index = rng.choice(rest.size, p=rest.ravel()) if rest.ndim else 0
        index = np.unravel_index(flat_index, rest.shape)
        frequencies[(*tokens, *index)] += 1 / samples
    return frequencies


def _find_worst(case: _Case, emitted: np.ndarray) -> Worst | None:
  """Finds the token with the largest error times its prefix's probability."""
  max_error, worst = -1.0, None
  gamma, table = case.start.gamma, case.start.table
  for length in range(gamma + 1):
    axes = tuple(range(length + 1, gamma + 1))
    joint = emitted.sum(axes), case.declared.sum(axes)
    for prefix in itertools.product(range(emitted.shape[0]), repeat=length):
      masses = [law[prefix].sum() for law in joint]
      if not all(masses):
        continue
      emitted_probs, probs = (
        law[prefix] / mass for law, mass in zip(joint, masses, strict=True)
      )
      errors = np.abs(emitted_probs - probs)
      token = int(np.argmax(errors))
      if masses[1] * errors[token] > max_error:
        max_error = masses[1] * errors[token]
        context = case.start.context(prefix)
        worst = Worst(
          prefix=prefix,
          token=token,
          declared=float(probs[token]),
          emitted=float(emitted_probs[token]),
          q=tuple(table.q[context].tolist()),
          p=tuple(table.p[context].tolist()),
        )
  return worst
