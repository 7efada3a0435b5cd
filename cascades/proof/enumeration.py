"""Laws that verification emits, by enumeration of every block.

Written without the library's own verification, to be compared with it; the
equations are those of the modules of `verification`.

A block is written as its tokens: the accepted drafts and the token after them.
An enumeration may yield one block several times; its probabilities add up. A
probability is an array [M], one number for each method of a `Table`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cascades import verification
from cascades.proof.table_models import Table, TableModel

# The tokens of a block, and the probability [M] that it is emitted.
Block = tuple[tuple[int, ...], np.ndarray]
# Bisections of [1, m] in the search for the divisor c of k_seq.
_HALVINGS = 60


@dataclasses.dataclass(frozen=True)
class BlockStart:
  """The start of a block, and the distributions of all continuations.

  Attributes:
    table: M methods evaluated in every context.
    bonus: [M, contexts, V] or [1, contexts, V], distribution of the token after
      a fully accepted draft.
    model: Maps a sequence of tokens to its context.
    prefix: Token ids before the block.
    gamma: Number of tokens of a draft.
  """

  table: Table
  bonus: np.ndarray
  model: TableModel
  prefix: tuple[int, ...]
  gamma: int

  @property
  def tokens(self) -> range:
    """Ids of the vocabulary."""
    return range(self.table.q.shape[-1])

  @property
  def certain(self) -> np.ndarray:
    """Ones, [M]: the probability of a certain event."""
    return np.ones(self.table.law.shape[0])

  def context(self, emitted: Sequence[int]) -> int:
    """Returns the context after these tokens of the block."""
    return self.model.context_after([*self.prefix, *emitted])

  def drafts(self) -> Iterator[tuple[tuple[int, ...], float, list[int]]]:
    """Enumerates the drafts that have positive probability."""
    for draft in itertools.product(self.tokens, repeat=self.gamma):
      contexts = [self.context(draft[:i]) for i in range(self.gamma + 1)]
      prob = float(np.prod(self.table.q[contexts[:-1], draft]))
      if prob:
        yield draft, prob, contexts


def end_block(
  accepted: tuple[int, ...], prob: np.ndarray, weights: np.ndarray
) -> Iterator[Block]:
  """Enumerates the blocks that end with one more token."""
  for y in range(weights.shape[-1]):
    yield (*accepted, y), prob * weights[:, y]


def normalize(weights: np.ndarray, fallback: np.ndarray) -> np.ndarray:
  """Normalizes weights, [M, V]; returns `fallback` where they have no mass."""
  mass = weights.sum(-1, keepdims=True)
  return np.where(mass > 0, weights / np.where(mass > 0, mass, 1), fallback)


def declared_law(
  table: Table, model: TableModel, prompt: Sequence[int], length: int
) -> np.ndarray:
  """Computes the declared law of the next `length` tokens.

  law(x_1 .. x_n) = prod_i law(x_i | prompt, x_1 .. x_{i-1})
  """
  count, _, v = table.law.shape
  total = np.ones((count,))
  for i in range(length):
    prefixes = list(itertools.product(range(v), repeat=i))
    tokens = np.array([[*prompt, *prefix] for prefix in prefixes])
    context = model.context(tokens, np.arange(tokens.shape[1]))
    laws = table.law[:, context].reshape([count] + [v] * (i + 1))
    total = total[..., None] * laws
  return total


def emitted_law(
  table: Table,
  config: verification.VerificationConfig,
  model: TableModel,
  prompt: Sequence[int],
  length: int,
  *shape: Any,
  **shape_by_name: Any,
) -> np.ndarray:
  """Computes the law of consecutive blocks, whose shape is that of `blocks`."""
  count, _, v = table.law.shape
  total = np.zeros([count] + [v] * length)
  # Probabilities of the emitted prefixes, the shortest prefixes first.
  pending = [{} for _ in range(length)]
  pending[0][()] = np.ones(count)
  for prefixes in pending:
    for emitted, prob in prefixes.items():
      start = table, config, model, [*prompt, *emitted], *shape
      for block, block_prob in blocks(*start, **shape_by_name):
        text = (*emitted, *block)[:length]
        if len(text) == length:
          total[(slice(None), *text)] += prob * block_prob
        else:
          prefix_probs = pending[len(text)]
          prefix_probs[text] = prefix_probs.get(text, 0) + prob * block_prob
  return total


def blocks(
  table: Table,
  config: verification.VerificationConfig,
  model: TableModel,
  prefix: Sequence[int],
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> Iterator[Block]:
  """Enumerates the blocks that can follow a prefix."""
  bonus = table.law if config.bonus == 'target' else table.p[None]
  start = BlockStart(
    table=table, bonus=bonus, model=model, prefix=tuple(prefix), gamma=gamma
  )
  if config.verification in verification.MULTI_DRAFT:
    yield from _tree_blocks(start, config.verification, drafts, tree_size)
  elif config.verification == 'token':
    yield from _by_token(start, (), start.certain)
  elif config.kind.blocks:
    yield from config.kind.blocks(start)
  elif config.window:
    yield from look_ahead_blocks(start, config.window)
  else:
    yield from _by_block(start)


def _by_token(
  start: BlockStart, accepted: tuple[int, ...], prob: np.ndarray
) -> Iterator[Block]:
  """Enumerates blocks of token verification after some accepted drafts."""
  table, c = start.table, start.context(accepted)
  if len(accepted) == start.gamma:
    yield from end_block(accepted, prob, start.bonus[:, c])
    return
  acceptance = table.q[c] * table.acceptance[:, c]
  rejection = (table.q[c] - acceptance).sum(-1)
  yield from end_block(accepted, prob * rejection, table.residual[:, c])
  for x in start.tokens:
    yield from _by_token(start, (*accepted, x), prob * acceptance[:, x])


def _by_block(start: BlockStart) -> Iterator[Block]:
  """Enumerates blocks of block verification.

  Each prefix x_1 .. x_n passes an independent test of probability h_n, and the
  longest that passes is kept. `_block_acceptance` computes h and the residuals.
  """
  for draft, draft_prob, contexts in start.drafts():
    keep, residuals = _block_acceptance(start.table, draft, contexts)
    prob = draft_prob * start.certain
    yield from end_block(draft, prob * keep[-1], start.bonus[:, contexts[-1]])
    prob = prob * (1 - keep[-1])
    for n in reversed(range(start.gamma)):
      keep_n = keep[n - 1] if n else 1.0
      mass = residuals[n].sum(-1, keepdims=True)
      weights = residuals[n] / np.where(mass > 0, mass, 1)
      yield from end_block(draft[:n], prob * keep_n, weights)
      prob = prob * (1 - keep_n)


def _block_acceptance(
  table: Table, draft: Sequence[int], contexts: Sequence[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Computes the acceptance and residuals of block verification.

  With w_0 = 1, and pi_i and q_i the law and the drafter's distribution before
  draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma.
  """
  weight = np.ones(table.law.shape[0])
  keep = []
  residuals = [np.maximum(table.law[:, contexts[0]] - table.q[contexts[0]], 0)]
  for i, x in enumerate(draft):
    c, next_c = contexts[i], contexts[i + 1]
    weight = weight * table.law[:, c, x] / table.q[c][x]
    weight = np.minimum(weight, 1)
    residual = weight[:, None] * table.law[:, next_c] - table.q[next_c]
    residuals.append(np.maximum(residual, 0))
    mass = residuals[-1].sum(-1)
    ratio = mass / np.where(weight < 1, mass + (1 - weight), 1)
    ratio = np.where(weight < 1, ratio, 1)
    keep.append(weight if i == len(draft) - 1 else ratio)
  return keep, residuals


def look_ahead_blocks(start: BlockStart, window: int) -> Iterator[Block]:
  """Enumerates blocks of look-ahead verification.

  A draft would be accepted by strict decoding, by the lenient method only, or
  by neither, with min(1, p / q), max(0, a - min(1, p / q)) and the rest.
  """
  table, gamma = start.table, start.gamma
  for draft, chance, rows in start.drafts():
    outcome_probs = []
    for c, x in zip(rows, draft, strict=False):
      q, p = table.q[c, x], table.p[c, x]
      strict = start.certain * (1.0 if p >= q else p / q)
      lenient = np.maximum(table.acceptance[:, c, x], strict)
      outcome_probs.append(
        dict(strict=strict, lenient=lenient - strict, neither=1 - lenient)
      )
    for outcomes in itertools.product(*outcome_probs):
      probs = [x[y] for x, y in zip(outcome_probs, outcomes, strict=True)]
      n = 0
      while n < gamma and (
        outcomes[n] == 'strict'
        or outcomes[n : n + window] == ('lenient', *['strict'] * (window - 1))
      ):
        n += 1
      c = rows[n]
      excess = np.maximum(table.p[c] - table.q[c], 0)[None]
      residual = normalize(excess, table.p[c][None])
      yield from end_block(
        draft[:n],
        chance * np.prod(probs, axis=0),
        start.bonus[:, c] if n == gamma else residual,
      )


# One step down a tree: the probability that it accepts each candidate, [M], and
# that it emits each token instead, [M, V].
_Step = tuple[dict[int, np.ndarray], np.ndarray]


def _tree_blocks(
  start: BlockStart, kind: str, drafts: int, tree_size: int | None
) -> Iterator[Block]:
  """Enumerates blocks of several drafts, all drawn independently."""
  gamma, table = start.gamma, start.table
  draft_values = list(start.drafts())
  # Drafts share prefixes, whose contexts are looked up once.
  contexts = {
    draft[:i]: draft_contexts[i]
    for draft, _, draft_contexts in draft_values
    for i in range(gamma + 1)
  }

  # Many trees contain the same step.
  @functools.cache
  def step(c, candidates):
    return _STEPS[kind](table.law[:, c], table.q[c], candidates)

  def from_root(accepted, active, prob):
    c, at = contexts[accepted], len(accepted)
    if at == levels:
      yield from end_block(accepted, prob, start.bonus[:, c])
      return
    acceptance, residual = step(c, tuple(draft[at] for draft in active))
    yield from end_block(accepted, prob, residual)
    for x, share in acceptance.items():
      agreement = [draft for draft in active if draft[at] == x]
      yield from from_root((*accepted, x), agreement, prob * share)

  def from_leaves(accepted, budget, prob):
    c, at = contexts[accepted], len(accepted)
    q, target, weights = table.q[c], table.law[:, c], start.bonus[:, c]
    for j, path in enumerate(paths):
      in_branch = path[:at] == accepted and len(path) > at
      if not in_branch or (j, at) in visited:
        continue
      visited.add((j, at))
      x_budget = np.minimum(1, budget * target[:, path[at]] / q[path[at]])
      prob = yield from from_leaves(path[: at + 1], x_budget, prob)
      remaining = np.maximum(budget[:, None] * target - q, 0)
      mass, missing = remaining.sum(-1), 1 - budget
      budget = mass / np.where(mass > 0, mass + missing, 1)
      target = weights = normalize(remaining, target)
    budget = budget if accepted else start.certain
    yield from end_block(accepted, prob * budget, weights)
    return prob * (1 - budget)

  for combination in itertools.product(draft_values, repeat=drafts):
    paths, draft_probs, _ = zip(*combination, strict=True)
    prob = np.prod(draft_probs) * start.certain
    levels = _levels(paths, tree_size or gamma * drafts)
    paths, visited = tuple(draft[:levels] for draft in paths), set()
    if kind in _STEPS:
      yield from from_root((), paths, prob)
    else:
      yield from from_leaves((), start.certain, prob)


def _levels(paths: Sequence[tuple[int, ...]], size: int) -> int:
  """Counts the levels of a tree that fit even if no two drafts agree there."""
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
