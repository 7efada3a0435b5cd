"""One step of the loop: drafts, verifies and commits one block.

`step` reads from top to bottom; its parts follow in the order of their calls.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods, verification
from cascades.decoding import faults
from cascades.decoding.block_stats import BlockStats
from cascades.decoding.drafter import (
  ROWS,
  Draft,
  DraftContext,
  end_before_forbidden,
)
from cascades.decoding.reading import build_tree, read_hidden
from cascades.decoding.state import Params, SamplingState, write
from cascades.decoding.step_config import StepConfig
from cascades.methods import processing
from cascades.verification_config import DRAFT


class Proposal(NamedTuple):
  """A drafted block, and both models' states after drafting."""

  draft: Draft
  drafter_state: PyTree
  verifier_cache: PyTree
  drafter_bad: Bool[Array, 'gamma_1']


class ReadBlock(NamedTuple):
  """A drafted block that the verifier has read; indices as in `Tree`."""

  draft: Draft
  node_indices: Int[Array, 'K gamma_1']
  logits: Float[Array, 'L V']
  hidden: Float[Array, 'L D']
  verifier_cache: PyTree


class BlockResult(NamedTuple):
  """A verified block: gamma + 1 positions along the accepted draft.

  Attributes:
    verdict: The outcome of verification.
    tokens: The accepted tokens, the token after them, and padding.
    logprobs: The verifier's log-probability of each token at temperature 1.
    hidden: The verifier's hidden states that predict each token.
    verifier_cache: The cache; the accepted draft's slots follow the sequence's.
    logits: The verifier's logits of each token; None if not requested.
    law: The law of each token; None if not requested.
    culprits: Whose distribution at each position is none: an index into
      `faults.CULPRITS`.
  """

  verdict: verification.Verdict
  tokens: Int[Array, 'gamma_1']
  logprobs: Float[Array, 'gamma_1']
  hidden: Float[Array, 'gamma_1 D']
  verifier_cache: PyTree
  logits: Float[Array, 'gamma_1 V'] | None
  law: Float[Array, 'gamma_1 V'] | None
  culprits: Int[Array, 'gamma_1']


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
  def verify(proposal, empty_draft=False):
    block = read_block(
      state, params, proposal, step_config, empty_draft=empty_draft
    )
    inputs = _verification_inputs(
      state, block, sampling, step_config, empty_draft=empty_draft
    )
    verdict = verification.verify(inputs, verify_key)
    return _block_result(
      state,
      block,
      inputs,
      verdict,
      drafter_bad=proposal.drafter_bad,
      step_config=step_config,
      with_logits=with_logits,
      with_law=with_law,
    )

  verifier_tokens = jnp.asarray(step_config.tree_tokens + 1)
  if step_config.allows_empty_draft:
    has_draft = (num_drafted > 0) & ~state.done
    any_draft = jax.lax.pmax(has_draft.astype(jnp.int32), ROWS) > 0
    from_empty_draft = functools.partial(verify, empty_draft=True)
    result = select_branch(any_draft, verify, from_empty_draft, proposal)
    # Counted as in a batch of this row.
    verifier_tokens = jnp.where(num_drafted > 0, verifier_tokens, 1)
  else:
    result = verify(proposal)

  # 4. End at the first stop token or at the limit, also inside a block, or at
  # a distribution that is none.
  num_tokens, ends_sequence = find_emission(
    state, result.tokens, result.verdict.num_accepted, stop_tokens
  )
  fault = faults.locate(state, result.culprits, num_tokens)

  # 5. Commit by moving `length`; roll both caches back.
  committed = commit(
    state,
    params,
    proposal.drafter_state,
    result,
    num_tokens=num_tokens,
    ends_sequence=ends_sequence | fault.is_fault,
    step_config=step_config,
  )
  index, verdict = jnp.arange(len(result.tokens)), result.verdict
  return committed, BlockStats(
    sources=jnp.where(index < verdict.num_accepted, DRAFT, verdict.next_source),
    verdict=verdict,
    logprobs=result.logprobs,
    logits=result.logits,
    drafted=num_drafted,
    drafter_calls=proposal.draft.calls,
    verifier_tokens=verifier_tokens,
    law=result.law,
    fault=fault,
  )


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
  gamma, num_drafts = step_config.gamma, step_config.drafts
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
    gamma=gamma,
    drafts=num_drafts,
  )
  chex.assert_shape(draft.tokens, (num_drafts, gamma))
  if draft.logits is not None:
    ids = draft.draft_vocab_ids
    size = verifier.vocab_size if ids is None else len(ids)
    chex.assert_shape(draft.logits, (gamma + 1, num_drafts, size))
  chex.assert_shape([draft.lengths, draft.has_bonus_probs], (num_drafts,))
  draft, drafter_bad = faults.end_at_faults(draft, needs_bonus_probs)
  return Proposal(
    draft=end_before_forbidden(draft, sampling),
    drafter_state=drafter_state,
    verifier_cache=verifier_cache,
    drafter_bad=drafter_bad,
  )


def read_block(
  state: SamplingState,
  params: Params,
  proposal: Proposal,
  step_config: StepConfig,
  empty_draft: bool = False,
) -> ReadBlock:
  """Reads a block with the verifier, in one call."""
  at = state.length - 1
  tree = build_tree(state.tokens[at], proposal.draft, step_config.tree_tokens)
  logits, hidden, cache = read_hidden(
    step_config.models.verifier,
    params.verifier,
    proposal.verifier_cache,
    tree.tokens[:1] if empty_draft else tree.tokens,
    position=at,
    tree_mask=tree.tree_mask,
    hidden_layers=step_config.models.drafter.hidden_layers,
  )
  # Without the barrier XLA computes the logits again for each of their uses.
  logits = jax.lax.optimization_barrier(logits)
  return ReadBlock(
    draft=tree.draft,
    node_indices=tree.node_indices,
    logits=logits,
    hidden=hidden,
    verifier_cache=cache,
  )


def distributions(
  drafter_logits: Float[Array, 'V'],
  verifier_logits: Float[Array, 'V'],
  sampling: processing.SamplingParams,
  gate: str = 'raw',
  drafter_sampling: processing.SamplingParams | None = None,
) -> methods.Distributions:
  """Computes the distributions that methods read at one position."""
  q = processing.processed_probs(drafter_logits, drafter_sampling or sampling)
  p = processing.processed_probs(verifier_logits, sampling)
  gates = q, p
  if gate == 'raw':
    gates = tuple(
      processing.gate_probs(logits)
      for logits in (drafter_logits, verifier_logits)
    )
  return methods.Distributions(
    q, p, *gates, p_logits=verifier_logits.astype(jnp.float32)
  )


def _verification_inputs(
  state: SamplingState,
  block: ReadBlock,
  sampling: processing.SamplingParams,
  step_config: StepConfig,
  empty_draft: bool,
) -> verification.VerificationInputs:
  """Makes the inputs of verification."""

  def distributions_at(position, draft):
    index = position
    if step_config.drafts > 1:
      index = block.node_indices[draft, position]
    p_logits = block.logits[index]
    q_logits = block.draft.logits_at(position, draft, p_logits.shape[-1])
    return distributions(
      q_logits, p_logits, sampling, gate=step_config.verification.gate
    )

  return verification.VerificationInputs(
    method=step_config.method,
    lenience=state.lenience,
    tokens=block.draft.tokens,
    draft_lengths=block.draft.lengths,
    has_bonus_probs=block.draft.has_bonus_probs,
    distributions_at=distributions_at,
    config=step_config.verification,
    empty_draft=empty_draft,
  )


def _block_result(
  state: SamplingState,
  block: ReadBlock,
  inputs: verification.VerificationInputs,
  verdict: verification.Verdict,
  *,
  drafter_bad: Bool[Array, 'gamma_1'],
  step_config: StepConfig,
  with_logits: bool,
  with_law: bool,
) -> BlockResult:
  """Gathers the accepted draft's tokens, states and cache slots."""
  n, draft_index = verdict.num_accepted, verdict.draft_index
  index = jnp.arange(inputs.gamma + 1)
  num_positions = 1 if inputs.empty_draft else len(index)
  tokens = jnp.append(inputs.tokens[draft_index], verdict.next_token)
  tokens = jnp.where(index == n, verdict.next_token, tokens)
  logits, hidden, cache = block.logits, block.hidden, block.verifier_cache
  if step_config.drafts > 1:
    nodes, at = block.node_indices[draft_index], state.length - 1
    cache = step_config.models.verifier.move(cache, at, at + nodes)
    logits, hidden = logits[nodes], hidden[nodes]

  def law_at(i):
    d = inputs.distributions_at(i, draft_index)
    law = inputs.method.law(d, inputs.lenience)
    has_bonus_probs = inputs.has_bonus_probs[draft_index]
    bonus = inputs.bonus_distribution(d, law, has_bonus_probs)
    return jnp.where(i == inputs.draft_lengths[draft_index], bonus, law)

  def pad(x):
    padding = [(0, len(index) - len(x))] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding)

  logprobs = jax.vmap(processing.token_logprob)(logits, tokens[:num_positions])
  return BlockResult(
    verdict=verdict,
    tokens=tokens,
    logprobs=pad(logprobs),
    hidden=pad(hidden),
    verifier_cache=cache,
    logits=pad(logits) if with_logits else None,
    law=pad(jax.vmap(law_at)(index[:num_positions])) if with_law else None,
    culprits=faults.culprits(
      verifier_bad=pad(~processing.is_sound(logits, hidden)),
      drafter_bad=drafter_bad,
      method_bad=(index == n) & ~verdict.is_valid,
    ),
  )


def select_branch(
  condition: Bool[Array, ''],
  if_true: Callable[[Proposal], BlockResult],
  if_false: Callable[[Proposal], BlockResult],
  proposal: Proposal,
) -> BlockResult:
  """Returns if_true(proposal) or if_false(proposal), without copying caches.

  XLA gives the result of a `cond` another buffer than its operand, and copying
  all caches takes a large part of the time of a token. The carry of a loop
  keeps its buffer, so each branch is a loop of one iteration or none.
  """

  def split(result):
    return result.verifier_cache, result._replace(verifier_cache=None)

  shapes = jax.eval_shape(lambda x: split(if_true(x))[1], proposal)
  carry = (
    proposal.verifier_cache,
    jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
  )
  for is_selected, branch in (condition, if_true), (~condition, if_false):

    def run(carry, branch=branch):
      _, cache, _ = carry
      result = branch(proposal._replace(verifier_cache=cache))
      return jnp.zeros((), bool), *split(result)

    _, *carry = jax.lax.while_loop(lambda x: x[0], run, (is_selected, *carry))
  cache, result = carry
  return result._replace(verifier_cache=cache)


def find_emission(
  state: SamplingState,
  tokens: Int[Array, 'gamma_1'],
  num_accepted: Int[Array, ''],
  stop_tokens: Int[Array, 'K'],
) -> tuple[Int[Array, ''], Bool[Array, '']]:
  """Returns how many tokens of a block are emitted, and if the sequence ends.

  A sequence ends at the first stop token or at its limit, also inside a block.
  """
  index = jnp.arange(len(tokens))
  is_stop = (tokens[:, None] == stop_tokens).any(-1) & (index <= num_accepted)
  stopped = is_stop.any()
  emitted = jnp.where(stopped, jnp.argmax(is_stop), num_accepted) + 1
  emitted = jnp.minimum(emitted, state.limit - state.length)
  emitted = jnp.where(state.done, 0, emitted)
  ended = (is_stop & (index < emitted)).any()
  return emitted, ended | (state.length + emitted >= state.limit)


def commit[S: SamplingState](
  state: S,
  params: Params,
  drafter_state: PyTree,
  result: BlockResult,
  *,
  num_tokens: Int[Array, ''],
  ends_sequence: Bool[Array, ''],
  step_config: StepConfig,
) -> S:
  """Writes a block's tokens, and rolls both caches back to length - 1."""
  verifier, drafter = step_config.models
  at, length = state.length - 1, state.length + num_tokens
  last_hidden = state.hidden
  if last_hidden is not None:
    new_hidden = result.hidden[jnp.maximum(num_tokens - 1, 0)]
    last_hidden = jnp.where(state.done, last_hidden, new_hidden)
  drafter_state = drafter.rollback(
    drafter_state,
    at,
    result.verdict.draft_index,
    length - 1,
    gamma=step_config.gamma,
    drafts=step_config.drafts,
  )
  drafter_state = drafter.observe(
    params.drafter,
    drafter_state,
    tokens=result.tokens,
    hidden=result.hidden,
    position=at,
    count=num_tokens,
  )
  return state.replace(
    tokens=write(state.tokens, state.length, result.tokens),
    length=length,
    blocks=state.blocks + ~state.done,
    verifier_cache=verifier.rewind(result.verifier_cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
    done=state.done | ends_sequence,
  )
