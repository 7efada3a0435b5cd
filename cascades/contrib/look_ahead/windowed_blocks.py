"""The blocks that `look_ahead` emits, enumerated."""

import itertools
from collections.abc import Iterator

import numpy as np

from cascades.proof import block_starts


def blocks(
  start: block_starts.BlockStart, window: int
) -> Iterator[block_starts.Block]:
  """Enumerates blocks that `look_ahead` emits, each with its probability.

  A draft would be accepted by strict decoding, by the lenient method only, or
  by neither, with min(1, p / q), max(0, a - min(1, p / q)) and the rest.
  """
  table, gamma = start.table, start.gamma
  for draft, chance, rows in start.drafts():
    ways = []
    for c, x in zip(rows, draft, strict=False):
      q, p = table.q[c, x], table.p[c, x]
      strict = start.certain * (1.0 if p >= q else p / q)
      likely = np.maximum(table.acceptance[:, c, x], strict)
      ways.append({'sure': strict, 'likely': likely - strict, '': 1 - likely})
    for outcomes in itertools.product(('sure', 'likely', ''), repeat=gamma):
      of_these = [way[word] for way, word in zip(ways, outcomes, strict=True)]
      n = 0
      while n < gamma and (
        outcomes[n] == 'sure'
        or outcomes[n : n + window] == ('likely', *['sure'] * (window - 1))
      ):
        n += 1
      c = rows[n]
      left = np.maximum(table.p[c] - table.q[c], 0)[None]
      instead = block_starts.normalize(left, table.p[c][None])
      yield from block_starts.end_block(
        draft[:n],
        chance * np.prod(of_these, axis=0),
        start.bonus[:, c] if n == gamma else instead,
      )
