"""Steps 2 and 3: the verifier reads a block, and verification decides it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods, verification
from cascades.decoding.drafter import Draft
from cascades.decoding.propose import Proposal
from cascades.decoding.reading import build_tree, read_hidden
from cascades.decoding.state import Params, SamplingState
from cascades.decoding.step_config import StepConfig
from cascades.methods import processing

# f(position, draft): the distributions after `position` tokens of a draft.
DistributionsAt = Callable[..., methods.Distributions]


class ReadBlock(NamedTuple):
  """A drafted block that the verifier has read; indices as in `Tree`."""

  draft: Draft
  node_indices: Int[Array, 'K gamma_1']
  logits: Float[Array, 'L V']
  hidden: Float[Array, 'L D']
  verifier_cache: PyTree


class ExtraOutputs(NamedTuple):
  """Optional outputs of a verified block."""

  logits: bool = False
  law: bool = False


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
    verifier_bad: True where the verifier's logits are no distribution.
    method_bad: True where the method's target is no distribution.
  """

  verdict: verification.Verdict
  tokens: Int[Array, 'gamma_1']
  logprobs: Float[Array, 'gamma_1']
  hidden: Float[Array, 'gamma_1 D']
  verifier_cache: PyTree
  logits: Float[Array, 'gamma_1 V'] | None
  law: Float[Array, 'gamma_1 V'] | None
  verifier_bad: Bool[Array, 'gamma_1']
  method_bad: Bool[Array, 'gamma_1']


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


def _distributions_at(
  block: ReadBlock,
  sampling: processing.SamplingParams,
  step_config: StepConfig,
) -> DistributionsAt:
  """Returns a function of position and draft that computes distributions."""
  gate = step_config.verification.gate

  def distributions_at(position, draft):
    index = position
    if step_config.drafts > 1:
      index = block.node_indices[draft, position]
    p_logits = block.logits[index]
    q_logits = block.draft.logits_at(position, draft, p_logits.shape[-1])
    return distributions(q_logits, p_logits, sampling, gate=gate)

  return distributions_at


def _verification_inputs(
  state: SamplingState,
  block: ReadBlock,
  sampling: processing.SamplingParams,
  step_config: StepConfig,
  empty_draft: bool,
) -> verification.VerificationInputs:
  """Makes the inputs of verification."""
  draft = block.draft
  num_drafts, gamma = draft.tokens.shape
  return verification.VerificationInputs(
    method=step_config.method,
    leniences=jnp.broadcast_to(state.lenience, (num_drafts, gamma + 1)),
    tokens=draft.tokens,
    draft_lengths=draft.lengths,
    has_bonus_probs=draft.has_bonus_probs,
    distributions_at=_distributions_at(block, sampling, step_config),
    config=step_config.verification,
    empty_draft=empty_draft,
  )


def _block_result(
  state: SamplingState,
  block: ReadBlock,
  inputs: verification.VerificationInputs,
  verdict: verification.Verdict,
  *,
  step_config: StepConfig,
  extra: ExtraOutputs,
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
    law = inputs.method.law(d, inputs.leniences[draft_index, i])
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
    logits=pad(logits) if extra.logits else None,
    law=pad(jax.vmap(law_at)(index[:num_positions])) if extra.law else None,
    verifier_bad=pad(~processing.is_sound(logits, hidden)),
    method_bad=(index == n) & ~verdict.is_valid,
  )


def verify_block(
  state: SamplingState,
  params: Params,
  sampling: processing.SamplingParams,
  proposal: Proposal,
  *,
  key: jax.Array,
  step_config: StepConfig,
  empty_draft: bool = False,
  extra: ExtraOutputs,
) -> BlockResult:
  """Reads and verifies a block."""
  block = read_block(
    state, params, proposal, step_config, empty_draft=empty_draft
  )
  inputs = _verification_inputs(
    state, block, sampling, step_config, empty_draft=empty_draft
  )
  verdict = verification.verify(inputs, key)
  return _block_result(
    state,
    block,
    inputs,
    verdict,
    step_config=step_config,
    extra=extra,
  )
