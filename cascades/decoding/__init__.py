"""Decodes a sequence block by block, in a compiled loop.

  model          The protocol of models.
  drafter        The protocol of drafters.
  reading        Reading tokens with a model, also as a tree of drafts.
  state          The state of a sequence between two steps.
  step_config    The static configuration of a step.
  step           One block: drafts, verifies and commits it.
  faults         Distributions that are not finite, which end a call.
  block_stats    Statistics of blocks, for people, and their counts.
  loop           Blocks of all rows, until the caller has work to do.
  rows           Operations on rows between two runs of the loop.

Everything but `loop` and `rows` is written for one sequence and `vmap`ped:
`step` returns (state, block), and only the loop records statistics.

Sizes in shapes: B rows, T slots of a cache, K drafts of gamma tokens, gamma_1 =
gamma + 1, V tokens of the vocabulary, D the width of hidden states.
"""

from cascades.decoding.block_stats import count, summarize_counts
from cascades.decoding.drafter import (
  ROWS,
  BoundDrafter,
  Draft,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.decoding.loop import decode
from cascades.decoding.model import Model
from cascades.decoding.reading import build_tree, read_hidden
from cascades.decoding.rows import (
  Prompts,
  extend,
  gather_rows,
  prefill,
  refill_rows,
  resize_caches,
)
from cascades.decoding.state import Models, Params, Row
from cascades.decoding.step import distributions, end_drafts, propose, step
from cascades.decoding.step_config import StepConfig, tree_tokens

__all__ = (
  'ROWS BoundDrafter Draft DraftContext Drafter Model Models Params Prompts Row'
  ' StepConfig build_tree count decode distributions end_drafts extend'
  ' full_length_draft gather_rows prefill propose read_hidden refill_rows'
  ' resize_caches step summarize_counts tree_tokens'
).split()
