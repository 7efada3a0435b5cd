"""The start of a block, and blocks as enumeration yields them.

A block is written as its tokens: the accepted drafts and the token after them.
An enumeration may yield one block several times; its probabilities add up. A
probability is an array [M], one number for each method of a `Table`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from cascades.proof.table_models import TableModel
from cascades.proof.tabulated import Table

# The tokens of a block, and the probability [M] that it is emitted.
Block = tuple[tuple[int, ...], np.ndarray]


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
