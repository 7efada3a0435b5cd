"""One sequence: its state, a block of it, and the loop that makes blocks.

  drafter     What a drafter has to offer.
  reading     How a model reads the next tokens, or drafts as a tree.
  state       What is kept of a sequence.
  step        A block: draft, verify, keep what stays.
  faults      Distributions that are not finite, which end a call.
  journal     What became of blocks, for people, and how it is counted.
  loop        Blocks of all rows, until there is something else to do.
  rows        What is done to rows between two loops.

Everything but the loop and `rows` is written for one sequence and `vmap`ped:
`step` gives (state, info), and only the loop writes the info down.
"""

from cascades.decoding.block_stats import Row, count
from cascades.decoding.drafter import (
  ROWS,
  BoundDrafter,
  Draft,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.decoding.loop import decode, summarize_counts
from cascades.decoding.reading import read, read_hidden, tree
from cascades.decoding.rows import (
  extend,
  gather_rows,
  prefill,
  refill_rows,
  resize_caches,
)
from cascades.decoding.state import Models, Params, SamplingState
from cascades.decoding.step import (
  StepConfig,
  distributions,
  propose,
  read_block,
  step,
  tree_tokens,
)

__all__ = [
  'ROWS',
  'BoundDrafter',
  'Draft',
  'DraftContext',
  'Drafter',
  'Models',
  'Params',
  'Row',
  'SamplingState',
  'StepConfig',
  'count',
  'decode',
  'distributions',
  'extend',
  'full_length_draft',
  'gather_rows',
  'prefill',
  'propose',
  'read',
  'read_block',
  'read_hidden',
  'refill_rows',
  'resize_caches',
  'step',
  'summarize_counts',
  'tree',
  'tree_tokens',
]
