"""Certifies that a verification function emits the law of a rule.

It is a function of NumPy arrays, from whatever engine:

  verify(q_rows, p_rows, drafts, rng) -> tokens

  q_rows  [gamma, V], what each draft was drawn from.
  p_rows  [gamma + 1, V], what the verifier would draw from there, and after
          the last draft.
  drafts  [gamma], token ids.
  rng     As `numpy.random.default_rng()` gives it; nothing else is random.
  tokens  Those that are emitted: drafts that stay, and one token more.

Rows are those of a small language model in which each context has its own, so
that drafts, blocks and their continuations are known. All rows of a call, those
of q and those of p, differ by `separation.LEAST_DISTANCE` in total variation: a
function that takes one for another emits another law. The law of the next
gamma + 1 tokens, of a block and what the declared law has after it, is compared
with the declared one, prefix by prefix. Where the function asks for random
numbers as verification does, everything that it could do is gone through
(`branching`), and the distance is exact; else it is sampled.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cascades import arguments, methods
from cascades.contrib.engine_audits import branching
from cascades.plain import plain
from cascades.proof import (
  block_starts,
  enumeration,
  separation,
  trial_distributions,
)
from cascades.proof.table_models import TableModel
from cascades.proof.tabulated import Table

Verify = Callable[[np.ndarray, np.ndarray, np.ndarray, Any], Sequence[int]]
# Total variation that float64 may come to. float32 comes to more: what it
# computes is off by some 1e-8, and is told so, but is not the law.
_EXACT, _SINGLE = 1e-9, 1e-6
_PROMPT = (0, 1)
# Blocks that are sampled of each model, and how sure its bounds are.
_SAMPLES, _CONFIDENCE = 20_000, 0.999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worst:
  """The prefix after which the emitted law is furthest from the declared one.

  Attributes:
    prefix: Tokens after the prompt.
    token: The one whose chances differ most.
    declared: Its chance there.
    emitted: What it is.
    q: The drafter's row there, [V].
    p: The verifier's, [V].
  """

  prefix: tuple[int, ...]
  token: int
  declared: float
  emitted: float
  q: tuple[float, ...]
  p: tuple[float, ...]

  def __str__(self) -> str:
    def row(values):
      return ', '.join(f'{x:.4f}' for x in values)

    return (
      f'after {list(self.prefix)}, token {self.token} has {self.emitted:.4f}'
      f' where {self.declared:.4f} is declared; q is {row(self.q)}, p'
      f' {row(self.p)}'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
  """Bounds on how far a verification function is from a rule.

  Attributes:
    rule: A method's name.
    lenience: What it was asked at.
    gamma: Drafts of a block.
    size: V.
    models: Small models that were looked at.
    exact: Whether everything was gone through; else blocks were sampled.
    reason: Why not, if not.
    low: Total variation of the next gamma + 1 tokens, of the mean model: no
      less than this.
    high: And no more.
    confidence: How sure both are; 1 where it is exact.
    worst: Where it is furthest; None where nothing is.
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
    """Says whether no difference from the rule was found."""
    return self.low <= _EXACT

  def to_dict(self) -> dict[str, Any]:
    """Returns the certificate as JSON can hold it."""
    return {'passed': self.passed} | plain(dataclasses.asdict(self))

  def __str__(self) -> str:
    said = (
      f'{self.rule} at lenience {self.lenience:g}, gamma {self.gamma},'
      f' {self.size} tokens, {self.models} models:'
      f' {"passed" if self.passed else "FAILED"}\n'
    )
    if self.exact:
      said += f'  total variation {self.low:.2g}, everything gone through'
      if _EXACT < self.low <= _SINGLE:
        said += (
          '\n  float32 rounds by as much: compute probabilities and their sums'
          ' in float64'
        )
    else:
      said += (
        f'  total variation from {self.low:.4f} to {self.high:.4f} with'
        f' confidence {self.confidence:g}, by samples ({self.reason})'
      )
    if self.worst is not None and not self.passed:
      said += f'\n  {self.worst}'
    return said


def declared(
  rule: str | methods.Method, lenience: float | None
) -> tuple[methods.Method, float]:
  """A rule that declares a law, and its lenience; strict where none is given.

  Raises:
    ValueError: It has not one target, or it is nowhere strict.
  """
  method = methods.get_method(rule)
  if not method.single_target:
    raise ValueError(f'rule: {method.name} has no single target to declare.')
  lenience = method.strict if lenience is None else lenience
  if lenience is None:
    raise ValueError(f'lenience: {method.name} is nowhere strict; give one.')
  return method, float(lenience)


def certify(
  verify: Verify,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
  *,
  gamma: int = 2,
  size: int = 3,
  models: int = 8,
  seed: int = 0,
) -> Certificate:
  """Compares a function with a rule.

  Args:
    verify: See the module. It is called some thousand times.
    rule: The declared one: a method that has one target, or its name.
    lenience: Of the rule; None for the one at which it is strict.
    gamma: Drafts of a block.
    size: V.
    models: Small models whose rows it is given.
    seed: Of their rows, and of samples.

  Raises:
    ValueError: An argument is out of its range, or the function returns what no
      verification can.
  """
  method, lenience = declared(rule, lenience)
  gamma = arguments.integer('gamma', gamma, 1)
  size = arguments.integer('size', size, 2)
  models = arguments.integer('models', models, 1)
  seed = arguments.integer('seed', seed, 0, arguments.MAX_SEED)
  model = TableModel.injective(size, gamma)
  pairs = separation.context_pairs(model, _PROMPT, gamma, along_drafts=True)
  ones = [
    _Model.of(method, lenience, gamma, model, pairs, seed + number)
    for number in range(models)
  ]
  reason = ''
  try:
    laws = [one.emitted(verify) for one in ones]
  except (branching.NotEnumerableError, TypeError) as e:
    # What no number of ours can do is a TypeError; a fault of the function's
    # own comes again.
    reason, rng = str(e), np.random.default_rng(seed)
    laws = [one.sampled(verify, rng) for one in ones]
  apart = [
    np.abs(law - one.declared).sum() / 2
    for one, law in zip(ones, laws, strict=True)
  ]
  spread = _spread(size ** (gamma + 1), models) if reason else 0.0
  mean = float(np.mean(apart))
  at = int(np.argmax(apart))
  return Certificate(
    rule=method.name,
    lenience=float(lenience),
    gamma=gamma,
    size=size,
    models=models,
    exact=not reason,
    reason=reason,
    low=max(0.0, mean - spread),
    high=min(1.0, mean + spread),
    confidence=_CONFIDENCE if reason else 1.0,
    worst=_worst(ones[at], laws[at]) if apart[at] > 0 else None,
  )


def _spread(cells: int, models: int) -> float:
  """Bounds how far a sampled distance is from the true one.

  Of n samples the frequencies of so many cells are within e of the law in
  total variation but for a chance of (2^cells - 2) exp(-2 n e^2) (Weissman et
  al. 2003), for each of the models.
  """
  wrong = (1 - _CONFIDENCE) / models
  bits = cells * math.log(2) - math.log(wrong)
  return math.sqrt(bits / (2 * _SAMPLES))


def _asked(
  verify: Verify, q: np.ndarray, p: np.ndarray, drafts: np.ndarray
) -> Callable[[Any], tuple[int, ...]]:
  """A call for a generator, which gives checked tokens."""

  def run(rng):
    # Copies, for whoever works in place.
    said = verify(q.copy(), p.copy(), drafts.copy(), rng)
    try:
      return _checked(said, drafts, p.shape[-1])
    except ValueError as e:
      chance = getattr(rng, 'chance', 1.0)
      if chance > _SINGLE:
        raise
      raise ValueError(
        f'{e} It did so with a probability of only {chance:.1g}, as where the'
        ' cumulative sum of float32 probabilities ends below 1: compute it in'
        ' float64, or limit the token to the last one.'
      ) from None

  return run


def _checked(said: Any, drafts: np.ndarray, size: int) -> tuple[int, ...]:
  """Tokens of a block.

  Raises:
    ValueError: They are no drafts that stay and one token more.
  """
  try:
    tokens = tuple(int(x) for x in said)
  except (TypeError, ValueError):
    raise ValueError(
      f'verify: it returned {arguments.quote(said)}; let it return a list of'
      ' token ids.'
    ) from None
  count = len(tokens) - 1
  stay = tokens[:count] == tuple(drafts[:count].tolist())
  inside = all(0 <= x < size for x in tokens)
  if not (0 <= count <= len(drafts) and stay and inside):
    raise ValueError(
      f'verify: of the drafts {drafts.tolist()} it made {list(tokens)}; let it'
      ' return drafts from the first one on, and one token more, each from 0 to'
      f' {size - 1}.'
    )
  return tokens


@dataclasses.dataclass(frozen=True)
class _Model:
  """A small model, and what is declared of it.

  Attributes:
    place: Where its blocks begin, and what the rule says of what follows.
    declared: The law of gamma + 1 tokens, [V] * (gamma + 1).
  """

  place: block_starts.BlockStart
  declared: np.ndarray

  @classmethod
  def of(
    cls,
    method: methods.Method,
    lenience: float,
    gamma: int,
    model: TableModel,
    pairs: np.ndarray,
    seed: int,
  ) -> '_Model':
    """One with rows that a seed draws.

    Raises:
      ValueError: Two rows that a function is given in one call are too near.
    """
    size = model.vocab_size
    d = trial_distributions.draw_distributions(
      'random', model.contexts, size, seed, pairs
    )
    separation.check_distances(np.asarray(d.q), np.asarray(d.p), pairs)
    # Gates are what is sampled from: an engine has no other.
    d = d._replace(q_gate=d.q, p_gate=d.p)
    with jax.enable_x64(True):
      table = Table.from_methods([(method, lenience)], d)
    law = enumeration.declared_law(table, model, _PROMPT, gamma + 1)[0]
    return cls(
      block_starts.BlockStart(table, table.law, model, _PROMPT, gamma), law
    )

  def _asked(
    self, verify: Verify
  ) -> Iterator[tuple[Callable[[Any], tuple[int, ...]], float]]:
    """For every draft a call for a generator, and the draft's chance."""
    q, p = self.place.table.q, self.place.table.p
    for draft, chance, rows in self.place.drafts():
      yield _asked(verify, q[rows[:-1]], p[rows], np.array(draft)), chance

  def emitted(self, verify: Verify) -> np.ndarray:
    """The law of a function, all of whose outcomes are gone through."""
    total = np.zeros_like(self.declared)
    for run, chance in self._asked(verify):
      for tokens, share in branching.outcomes(run).items():
        total[tokens] += chance * share * self._after(tokens)
    return total

  def _after(self, tokens: tuple[int, ...]) -> np.ndarray | np.floating:
    """Returns the declared law of the token after these."""
    mass = self.declared[tokens]
    return mass / mass.sum() if mass.sum() > 0 else mass

  def sampled(self, verify: Verify, rng: np.random.Generator) -> np.ndarray:
    """Frequencies of gamma + 1 tokens."""
    total = np.zeros_like(self.declared)
    runs, chances = zip(*self._asked(verify), strict=True)
    counts = rng.multinomial(_SAMPLES, np.array(chances) / sum(chances))
    for run, count in zip(runs, counts, strict=True):
      for _ in range(count):
        tokens = run(rng)
        rest = self._after(tokens)
        # Drawn as well, so that the frequencies are of so many samples.
        at = rng.choice(rest.size, p=rest.ravel()) if rest.size > 1 else 0
        where = np.unravel_index(at, rest.shape) if rest.size > 1 else ()
        total[(*tokens, *where)] += 1 / _SAMPLES
    return total


def _worst(one: _Model, emitted: np.ndarray) -> Worst:
  """Finds the next token whose chance, times its prefix's, differs most."""
  best, found = -1.0, None
  gamma, table = one.place.gamma, one.place.table
  for length in range(gamma + 1):
    axes = tuple(range(length + 1, gamma + 1))
    ours, theirs = emitted.sum(axes), one.declared.sum(axes)
    for prefix in itertools.product(range(emitted.shape[0]), repeat=length):
      mine, declared = ours[prefix], theirs[prefix]
      if not mine.sum() or not declared.sum():
        continue
      mine, weight = mine / mine.sum(), declared.sum()
      declared = declared / declared.sum()
      token = int(np.argmax(np.abs(mine - declared)))
      off = weight * abs(mine[token] - declared[token])
      if off > best:
        c = one.place.context(prefix)
        best = off
        found = Worst(
          prefix=prefix,
          token=token,
          declared=float(declared[token]),
          emitted=float(mine[token]),
          q=tuple(table.q[c].tolist()),
          p=tuple(table.p[c].tolist()),
        )
  return found
