"""Laws that verification emits, by enumeration of every block.

Written without the library's own verification, to be compared with it; the
equations are those of the modules of `verification`. A probability is an array
[M], one number for each method of a `Table`.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from cascades import verification
from cascades.proof import tree_enumeration
from cascades.proof.block_starts import Block, BlockStart, end_block, normalize
from cascades.proof.table_models import TableModel
from cascades.proof.tabulated import Table


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
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> np.ndarray:
  """Computes the law that consecutive blocks emit."""
  count, _, v = table.law.shape
  total = np.zeros([count] + [v] * length)
  # Probabilities of the emitted prefixes, the shortest prefixes first.
  pending = [{} for _ in range(length)]
  pending[0][()] = np.ones(count)
  for prefixes in pending:
    for emitted, prob in prefixes.items():
      for block, block_prob in blocks(
        table,
        config,
        model,
        [*prompt, *emitted],
        gamma=gamma,
        drafts=drafts,
        tree_size=tree_size,
      ):
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
    yield from tree_enumeration.tree_blocks(
      start, config.verification, drafts, tree_size
    )
  elif config.verification == 'token':
    yield from _by_token(start, (), start.certain)
  elif config.kind.blocks:
    yield from config.kind.blocks(start)
  elif config.window:
    yield from look_ahead_blocks(start, config.window)
  else:
    yield from _by_block(start)


# --- One draft ---


def _by_token(
  start: BlockStart, accepted: tuple[int, ...], prob: np.ndarray
) -> Iterator[Block]:
  """Enumerates blocks of token verification after some accepted drafts.

  A drafted token is x and is accepted with probability q(x) a(x). With the
  remaining probability a token of the residual ends the block.
  """
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
