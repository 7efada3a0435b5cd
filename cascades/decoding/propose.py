"""Step 1: drafts the tokens of a block."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from cascades.decoding import faults
from cascades.decoding.drafter import (
  Draft,
  DraftContext,
  end_before_forbidden,
)
from cascades.decoding.state import Params, SamplingState
from cascades.decoding.step_config import StepConfig
from cascades.methods import processing


class Proposal(NamedTuple):
  """A drafted block, and both models' states after drafting."""

  draft: Draft
  drafter_state: PyTree
  verifier_cache: PyTree
  drafter_bad: Bool[Array, 'gamma_1']


def block_keys(state: SamplingState) -> tuple[jax.Array, jax.Array]:
  """Returns the random keys of a block: for drafting, and for verification."""
  draft_key, verify_key = jax.vmap(jax.random.fold_in, (None, 0))(
    state.key, 2 * state.blocks + jnp.arange(2)
  )
  return draft_key, verify_key


def propose(
  state: SamplingState,
  params: Params,
  sampling: processing.SamplingParams,
  key: jax.Array,
  step_config: StepConfig,
) -> Proposal:
  """Drafts the tokens of a block.

  Drafts end before a token whose logits are no distribution, and before a
  position where every token with mass is forbidden.
  """
  verifier, drafter = step_config.models
  needs_bonus_probs = step_config.needs_bonus_probs(state) & ~state.done
  context = DraftContext(
    tokens=state.tokens,
    length=state.length,
    hidden=state.hidden,
    verifier_cache=state.verifier_cache,
    key=key,
    sampling=sampling,
    needs_bonus_probs=needs_bonus_probs,
  )
  draft, drafter_state, verifier_cache = drafter.propose(
    params.drafter,
    state.drafter_state,
    context,
    gamma=step_config.gamma,
    drafts=step_config.drafts,
  )
  _check_shapes(draft, verifier.vocab_size, step_config)
  draft, drafter_bad = faults.end_at_faults(draft, needs_bonus_probs)
  return Proposal(
    draft=end_before_forbidden(draft, sampling),
    drafter_state=drafter_state,
    verifier_cache=verifier_cache,
    drafter_bad=drafter_bad,
  )


def _check_shapes(
  draft: Draft, vocab_size: int, step_config: StepConfig
) -> None:
  """Checks the shapes of what a drafter returned."""
  gamma, num_drafts = step_config.gamma, step_config.drafts
  chex.assert_shape(draft.tokens, (num_drafts, gamma))
  if draft.logits is not None:
    ids = draft.draft_vocab_ids
    size = vocab_size if ids is None else len(ids)
    chex.assert_shape(draft.logits, (gamma + 1, num_drafts, size))
  chex.assert_shape([draft.lengths, draft.has_bonus_probs], (num_drafts,))
