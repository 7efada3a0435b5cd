"""Blocks of several drafts that verification emits, by enumeration.

Written without the library's own verification, to be compared with it; the
equations are those of `verification.multi_draft` and `verification.traversal`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import numpy as np

from cascades.proof.block_starts import (
  Block,
  BlockStart,
  end_block,
  normalize,
)

# Bisections of [1, m] in the search for the divisor c of k_seq.
_HALVINGS = 60


def tree_blocks(
  start: BlockStart, kind: str, drafts: int, tree_size: int | None
) -> Iterator[Block]:
  """Enumerates blocks of several drafts, all drawn independently."""
  gamma = start.gamma
  draft_values = list(start.drafts())
  # Drafts share prefixes, whose contexts are looked up once.
  contexts = {
    draft[:i]: draft_contexts[i]
    for draft, _, draft_contexts in draft_values
    for i in range(gamma + 1)
  }
  step = _cached_step(start, kind) if kind in _STEPS else None
  for combination in itertools.product(draft_values, repeat=drafts):
    paths, draft_probs, _ = zip(*combination, strict=True)
    prob = np.prod(draft_probs) * start.certain
    levels = _levels(paths, tree_size or gamma * drafts)
    paths = tuple(draft[:levels] for draft in paths)
    if step is None:
      leaves = _LeavesFirst(start, contexts, paths, set())
      yield from leaves.visit((), start.certain, prob)
    else:
      yield from _RootFirst(start, contexts, step, levels).visit(
        (), paths, prob
      )


# One step down a tree: the probability that it accepts each candidate, [M], and
# that it emits each token instead, [M, V].
_Step = tuple[dict[int, np.ndarray], np.ndarray]


def _cached_step(
  start: BlockStart, kind: str
) -> Callable[[int, tuple[int, ...]], _Step]:
  """Makes a function of a context and the candidates after it."""
  table = start.table

  # Many trees contain the same step.
  @functools.cache
  def step(c, candidates):
    return _STEPS[kind](table.law[:, c], table.q[c], candidates)

  return step


@dataclasses.dataclass(frozen=True)
class _RootFirst:
  """A tree of drafts that is verified from its root to its leaves."""

  start: BlockStart
  contexts: Mapping[tuple[int, ...], int]
  step: Callable[[int, tuple[int, ...]], _Step]
  levels: int

  def visit(
    self,
    accepted: tuple[int, ...],
    active: Sequence[tuple[int, ...]],
    prob: np.ndarray,
  ) -> Iterator[Block]:
    """Enumerates the blocks that begin with some accepted tokens."""
    c, at = self.contexts[accepted], len(accepted)
    if at == self.levels:
      yield from end_block(accepted, prob, self.start.bonus[:, c])
      return
    acceptance, residual = self.step(c, tuple(draft[at] for draft in active))
    yield from end_block(accepted, prob, residual)
    for x, share in acceptance.items():
      agreement = [draft for draft in active if draft[at] == x]
      yield from self.visit((*accepted, x), agreement, prob * share)


@dataclasses.dataclass(frozen=True)
class _LeavesFirst:
  """A tree of drafts that is verified from its leaves to its root."""

  start: BlockStart
  contexts: Mapping[tuple[int, ...], int]
  paths: Sequence[tuple[int, ...]]
  visited: set[tuple[int, int]]

  def visit(
    self, accepted: tuple[int, ...], budget: np.ndarray, prob: np.ndarray
  ) -> Generator[Block, None, np.ndarray]:
    """Enumerates the blocks through a node."""
    table, c, at = self.start.table, self.contexts[accepted], len(accepted)
    q, target, weights = table.q[c], table.law[:, c], self.start.bonus[:, c]
    for j, path in enumerate(self.paths):
      in_branch = path[:at] == accepted and len(path) > at
      if not in_branch or (j, at) in self.visited:
        continue
      self.visited.add((j, at))
      x_budget = np.minimum(1, budget * target[:, path[at]] / q[path[at]])
      prob = yield from self.visit(path[: at + 1], x_budget, prob)
      remaining = np.maximum(budget[:, None] * target - q, 0)
      mass, missing = remaining.sum(-1), 1 - budget
      budget = mass / np.where(mass > 0, mass + missing, 1)
      target = weights = normalize(remaining, target)
    if not accepted:
      budget = self.start.certain
    yield from end_block(accepted, prob * budget, weights)
    return prob * (1 - budget)


def _levels(paths: Sequence[tuple[int, ...]], size: int) -> int:
  """Counts the levels of a tree of drafts that the verifier reads.

  A level is read if it would fit even if no two drafts agreed in it.
  """
  gamma, nodes = len(paths[0]), 0
  for level in range(gamma):
    if nodes + len(paths) > size:
      return level
    nodes += len({draft[: level + 1] for draft in paths})
  return gamma


def _match(law: np.ndarray, q: np.ndarray, candidates: Sequence[int]) -> _Step:
  """Draws a token of the law, and accepts it if it is a candidate."""
  del q
  acceptance = {x: law[:, x] for x in candidates}
  is_residual = [y not in acceptance for y in range(law.shape[1])]
  return acceptance, law * is_residual


def _multi_round(
  law: np.ndarray, q: np.ndarray, candidates: Sequence[int]
) -> _Step:
  """Verifies one candidate after the other, from rho = pi on.

  accept x with min(1, rho(x) / q(x)), else rho <- norm(max(0, rho - q))
  """
  acceptance = {x: np.zeros(len(law)) for x in candidates}
  remaining, rho = np.ones(len(law)), law
  for x in candidates:
    accept = np.minimum(1, rho[:, x] / q[x])
    acceptance[x] = acceptance[x] + remaining * accept
    remaining = remaining * (1 - accept)
    rho = normalize(np.maximum(rho - q, 0), rho)
  return acceptance, remaining[:, None] * rho


def _k_seq(law: np.ndarray, q: np.ndarray, candidates: Sequence[int]) -> _Step:
  """Verifies every candidate against the law divided by a number c.

    accept x with min(1, pi(x) / (c q(x)))
    else draw from norm(pi - min(q, pi / c) a / b)

  with b and a from `_divisor`.
  """
  acceptance = {x: np.zeros(len(law)) for x in candidates}
  remaining = np.ones(len(law))
  c, b, a = _divisor(law, q, len(candidates))
  for x in candidates:
    accept = np.minimum(1, law[:, x] / c / q[x])
    acceptance[x] = acceptance[x] + remaining * accept
    remaining = remaining * (1 - accept)
  share = np.minimum(q, law / c[:, None])
  weights = np.maximum(law - share * (a / np.where(b > 0, b, 1))[:, None], 0)
  return acceptance, remaining[:, None] * normalize(weights, law)


def _divisor(
  law: np.ndarray, q: np.ndarray, m: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Finds the least c in [1, m] with c b >= a, by bisection.

  b = sum min(q, pi / c),   a = 1 - (1 - b)^m
  """

  def probabilities(c):
    b = np.minimum(q, law / c[:, None]).sum(-1)
    return b, 1 - (1 - b) ** m

  low, high = np.ones(len(law)), np.full(len(law), float(m))
  for _ in range(_HALVINGS):
    center = (low + high) / 2
    b, a = probabilities(center)
    suffices = center * b >= a
    low = np.where(suffices, low, center)
    high = np.where(suffices, center, high)
  return high, *probabilities(high)


_STEPS = {'match': _match, 'multi_round': _multi_round, 'k_seq': _k_seq}
