"""What a cascade of tokens costs, which speculative cascades are compared with.

The drafter writes until its rule defers; there the verifier writes one token
(`verification.single.sequential`). The loop makes blocks of it, which is faster
than token by token and changes no answer; but a cascade has no blocks, so that
its counts are made of where its tokens came from.
"""

import numpy as np

from cascades.decoding.journal import Row
from cascades.scheme import RESIDUAL


def tally(row: Row) -> dict[str, int]:
  """Calls and tokens of a cascade of tokens, of one row that was fetched.

  The drafter is called once a token. The verifier is called where it takes
  over, and reads there what was written up to then.
  """
  new = slice(int(row.prompt_length), int(row.length))
  (written,) = np.nonzero(np.asarray(row.source[new]) == RESIDUAL)
  tokens = new.stop - new.start
  return dict(
    drafted=tokens,
    drafter_calls=tokens,
    verifier_calls=len(written),
    verifier_tokens=int(written[-1]) + 1 if len(written) else 0,
  )
