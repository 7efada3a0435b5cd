"""One step of the loop: drafts, verifies and commits one block."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades.decoding import faults
from cascades.decoding.block_stats import BlockStats
from cascades.decoding.commit import Emission, commit, find_emission
from cascades.decoding.drafter import ROWS
from cascades.decoding.propose import Proposal, block_keys, propose
from cascades.decoding.select_branch import select_branch
from cascades.decoding.state import Params, SamplingState
from cascades.decoding.step_config import StepConfig
from cascades.decoding.verify_block import (
  BlockResult,
  ExtraOutputs,
  verify_block,
)
from cascades.methods import processing
from cascades.verification_config import DRAFT


def _verify_any_draft(
  verify: Callable[..., BlockResult],
  proposal: Proposal,
  has_draft: Bool[Array, ''],
) -> BlockResult:
  """Verifies a block if a row of the batch has a draft, else one token."""
  any_draft = jax.lax.pmax(has_draft.astype(jnp.int32), ROWS) > 0
  from_empty_draft = functools.partial(verify, empty_draft=True)
  return select_branch(any_draft, verify, from_empty_draft, proposal)


def _end_at_fault(
  state: SamplingState,
  proposal: Proposal,
  result: BlockResult,
  emission: Emission,
) -> tuple[Emission, faults.Fault]:
  """Ends a sequence if a distribution of an emitted token is not finite."""
  fault = faults.locate(
    state,
    verifier_bad=result.verifier_bad,
    drafter_bad=proposal.drafter_bad,
    method_bad=result.method_bad,
    emitted=emission.num_tokens,
  )
  ends_sequence = emission.ends_sequence | fault.is_fault
  return emission._replace(ends_sequence=ends_sequence), fault


def _token_sources(result: BlockResult) -> Int[Array, 'gamma_1']:
  """Returns the source of each token of a block."""
  index, verdict = jnp.arange(len(result.tokens)), result.verdict
  return jnp.where(index < verdict.num_accepted, DRAFT, verdict.next_source)


def _verifier_tokens(
  num_drafted: Int[Array, ''], step_config: StepConfig
) -> Int[Array, '']:
  """Counts the tokens that the verifier would read in a batch of this row."""
  block = jnp.asarray(step_config.tree_tokens + 1)
  if not step_config.allows_empty_draft:
    return block
  return jnp.where(num_drafted > 0, block, 1)


def step[S: SamplingState](
  state: S,
  params: Params,
  sampling: processing.SamplingParams,
  stop_tokens: Int[Array, 'K'],
  *,
  step_config: StepConfig,
  with_logits: bool = False,
  with_law: bool = False,
) -> tuple[S, BlockStats]:
  """Drafts, verifies and commits one block of one sequence."""
  draft_key, verify_key = block_keys(state)
  # 1. Draft gamma tokens per draft, with the logits they were drawn from.
  proposal = propose(
    state, params, sampling, key=draft_key, step_config=step_config
  )
  num_drafted = proposal.draft.lengths.sum()

  # 2. Read the last token and all drafts with the verifier, in one call.
  # 3. Accept drafted tokens, and sample the token after them.
  verify = functools.partial(
    verify_block,
    state,
    params,
    sampling,
    key=verify_key,
    step_config=step_config,
    extra=ExtraOutputs(logits=with_logits, law=with_law),
  )
  if step_config.allows_empty_draft:
    has_draft = (num_drafted > 0) & ~state.done
    result = _verify_any_draft(verify, proposal, has_draft)
  else:
    result = verify(proposal)

  # 4. End at the first stop token or at the limit, also inside a block.
  emission = find_emission(
    state, result.tokens, result.verdict.num_accepted, stop_tokens
  )
  emission, fault = _end_at_fault(state, proposal, result, emission)

  # 5. Commit by moving `length`; roll both caches back.
  committed = commit(
    state,
    params,
    proposal.drafter_state,
    result,
    emission=emission,
    step_config=step_config,
  )
  return committed, BlockStats(
    sources=_token_sources(result),
    verdict=result.verdict,
    logprobs=result.logprobs,
    logits=result.logits,
    drafted=num_drafted,
    drafter_calls=proposal.draft.calls,
    verifier_tokens=_verifier_tokens(num_drafted, step_config),
    law=result.law,
    fault=fault,
  )
