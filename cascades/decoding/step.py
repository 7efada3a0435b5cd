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
from cascades.decoding.drafter import ROWS, Draft, DraftContext
from cascades.decoding.faults import Fault
from cascades.decoding.reading import build_tree, read_hidden
from cascades.decoding.state import Params, Row, write
from cascades.decoding.step_config import StepConfig
from cascades.methods import processing


class Proposal(NamedTuple):
  """A drafted block, and both models' states after drafting."""

  draft: Draft
  drafter_state: PyTree
  verifier_cache: PyTree
  drafter_bad: Bool[Array, 'gamma_1']


class Block(NamedTuple):
  """A verified block: gamma + 1 positions along the accepted draft.

  Attributes:
    verdict: The outcome of verification.
    tokens: The accepted tokens, the token after them, and padding.
    logprobs: The verifier's log-probability of each token at temperature 1.
    hidden: The verifier's hidden states that predict each token.
    verifier_cache: The cache; the accepted draft's slots follow the sequence's.
    logits: The verifier's logits of each token; None if the row has none.
    law_logprobs: log q, log p and log law of each token, nan where q is
      undefined; None if the row has none.
    culprits: Whose distribution at each position is none: an index into
      `faults.CULPRITS`.
    counts: Blocks, drafted tokens, calls of the drafter, and tokens that the
      verifier read. `step` fills them in, and the fault.
    fault: The first fault among the emitted tokens.
  """

  verdict: verification.Verdict
  tokens: Int[Array, 'gamma_1']
  logprobs: Float[Array, 'gamma_1']
  hidden: Float[Array, 'gamma_1 D']
  verifier_cache: PyTree
  logits: Float[Array, 'gamma_1 V'] | None
  law_logprobs: Float[Array, 'gamma_1 3'] | None
  culprits: Int[Array, 'gamma_1']
  counts: tuple[Int[Array, ''] | int, ...] = ()
  fault: Fault | None = None


def step(
  state: Row,
  params: Params,
  sampling: processing.SamplingParams,
  stop_tokens: Int[Array, 'K'],
  *,
  step_config: StepConfig,
) -> tuple[Row, Block]:
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
    verify_block, state, params, sampling, verify_key, step_config
  )
  verifier_tokens = jnp.asarray(step_config.tree_tokens + 1)
  if step_config.allows_empty_draft:
    has_draft = (num_drafted > 0) & ~state.done
    any_draft = jax.lax.pmax(has_draft.astype(jnp.int32), ROWS) > 0
    from_empty_draft = functools.partial(verify, empty_draft=True)
    block = select_branch(any_draft, verify, from_empty_draft, proposal)
    # Counted as in a batch of this row.
    verifier_tokens = jnp.where(num_drafted > 0, verifier_tokens, 1)
  else:
    block = verify(proposal)

  # 4. End at the first stop token or at the limit, also inside a block, or at
  # a distribution that is none.
  num_tokens, ends_sequence = find_emission(
    state, block.tokens, block.verdict.num_accepted, stop_tokens
  )
  culprits = jnp.where(
    jnp.arange(len(block.culprits)) < num_tokens, block.culprits, 0
  )
  at = jnp.argmax(culprits > 0).astype(jnp.int32)
  fault = Fault(culprits[at], state.length + at)

  # 5. Commit by moving `length`; roll both caches back.
  committed = commit(
    state,
    params,
    proposal.drafter_state,
    block,
    num_tokens=num_tokens,
    ends_sequence=ends_sequence | (fault.culprit > 0),
    step_config=step_config,
  )
  counts = 1, num_drafted, proposal.draft.calls, verifier_tokens
  return committed, block._replace(counts=counts, fault=fault)


def block_keys(state: Row) -> tuple[jax.Array, jax.Array]:
  """Returns the random keys of a block: for drafting, and for verification."""
  draft_key, verify_key = jax.vmap(jax.random.fold_in, (None, 0))(
    state.key, 2 * state.blocks + jnp.arange(2)
  )
  return draft_key, verify_key


def propose(
  state: Row,
  params: Params,
  sampling: processing.SamplingParams,
  key: jax.Array,
  step_config: StepConfig,
) -> Proposal:
  """Drafts the tokens of a block, as far as their distributions are defined."""
  verifier, drafter = step_config.models
  gamma, num_drafts = step_config.gamma, step_config.drafts
  needs_bonus_probs = step_config.needs_bonus_probs(state) & ~state.done
  context = DraftContext(
    tokens=state.tokens,
    length=state.length,
    hidden=state.hidden,
    verifier_cache=state.verifier_cache,
    key=key,
    sampling=sampling.of_drafter,
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
  draft, drafter_bad = end_drafts(draft, sampling, needs_bonus_probs)
  return Proposal(draft, drafter_state, verifier_cache, drafter_bad)


def end_drafts(
  draft: Draft,
  sampling: processing.SamplingParams,
  reads_bonus_logits: Bool[Array, ''],
) -> tuple[Draft, Bool[Array, 'gamma_1']]:
  """Ends each draft before the first token whose q is undefined.

  Its logits are no distribution, which is a fault where they are read, or each
  token with mass is forbidden. The verifier alone decides the token there, so
  that the law holds whatever the drafter returns. The value after a draft's
  last token decides `has_bonus_probs`.
  """
  size = draft.tokens.shape[1] + 1

  def end(draft, is_defined):
    index = jnp.arange(size)
    in_draft = index < draft.lengths[:, None]
    lengths = jnp.where(is_defined | ~in_draft, index[-1], index)
    lengths = jnp.minimum(lengths.min(-1), draft.lengths)
    at_end = jnp.take_along_axis(is_defined, lengths[:, None], 1)[:, 0]
    return draft._replace(
      lengths=lengths, has_bonus_probs=draft.has_bonus_probs & at_end
    )

  logits = draft.logits
  if logits is None:
    # Each q is one-hot.
    drafter_bad = jnp.zeros(size, bool)
    if sampling.forbidden is not None:
      is_allowed = ~sampling.forbidden[draft.tokens]
      draft = end(draft, jnp.pad(is_allowed, ((0, 0), (0, 1))))
    return draft, drafter_bad
  index = jnp.arange(size)[:, None]
  is_bonus = (index == draft.lengths) & draft.has_bonus_probs
  is_bad = ~processing.is_distribution(logits)
  # Unread logits are no fault, but end the draft too.
  is_read = (index < draft.lengths) | (is_bonus & reads_bonus_logits)
  ended = is_bad & is_read
  draft, drafter_bad = end(draft, ~is_bad.T), ended.any(-1)
  forbidden = sampling.restrict_vocab(draft.draft_vocab_ids).forbidden
  if forbidden is not None:
    is_allowed = processing.has_allowed_token(logits, forbidden)
    draft = end(draft, is_allowed.T)
  return draft, drafter_bad


def distributions(
  drafter_logits: Float[Array, 'V'],
  verifier_logits: Float[Array, 'V'],
  sampling: processing.SamplingParams,
  gate: str = 'raw',
) -> methods.Distributions:
  """Computes the distributions that methods read at one position."""
  q = processing.processed_probs(drafter_logits, sampling.of_drafter)
  p = processing.processed_probs(verifier_logits, sampling)
  gates = q, p
  if gate == 'raw':
    gates = tuple(
      processing.gate_probs(logits)
      for logits in (drafter_logits, verifier_logits)
    )
  p_logits = verifier_logits.astype(jnp.float32)
  return methods.Distributions(
    q, p, *gates, p_logits=p_logits, forbidden=sampling.forbidden
  )


def verify_block(
  state: Row,
  params: Params,
  sampling: processing.SamplingParams,
  key: jax.Array,
  step_config: StepConfig,
  proposal: Proposal,
  empty_draft: bool = False,
) -> Block:
  """Reads a block with the verifier, in one call, and verifies it."""
  verifier, drafter = step_config.models
  at, is_tree = state.length - 1, step_config.drafts > 1
  tree = build_tree(state.tokens[at], proposal.draft, step_config.tree_tokens)
  node_logits, hidden, cache = read_hidden(
    verifier,
    params.verifier,
    proposal.verifier_cache,
    tree.tokens[:1] if empty_draft else tree.tokens,
    position=at,
    tree_mask=tree.tree_mask,
    hidden_layers=drafter.hidden_layers,
  )
  # Without the barrier XLA computes the logits again for each of their uses.
  logits = node_logits = jax.lax.optimization_barrier(node_logits)

  def distributions_at(position, draft):
    p_logits = node_logits[
      tree.node_indices[draft, position] if is_tree else position
    ]
    q_logits = tree.draft.logits_at(position, draft, p_logits.shape[-1])
    return distributions(
      q_logits, p_logits, sampling, gate=step_config.verification.gate
    )

  inputs = verification.VerificationInputs(
    method=step_config.method,
    lenience=state.lenience,
    tokens=tree.draft.tokens,
    draft_lengths=tree.draft.lengths,
    # A law that does not read q is known without it.
    has_bonus_probs=tree.draft.has_bonus_probs
    | (not step_config.method.law_uses_q),
    distributions_at=distributions_at,
    config=step_config.verification,
    empty_draft=empty_draft,
    with_probs=state.law_logprobs is not None,
  )
  verdict = verification.verify(inputs, key)

  # The accepted draft's tokens, states and cache slots.
  n, draft_index = verdict.num_accepted, verdict.draft_index
  index = jnp.arange(inputs.gamma + 1)
  num_positions = 1 if empty_draft else len(index)
  tokens = jnp.append(inputs.tokens[draft_index], verdict.next_token)
  tokens = jnp.where(index == n, verdict.next_token, tokens)
  if is_tree:
    nodes = tree.node_indices[draft_index]
    cache = verifier.move(cache, at, at + nodes)
    logits, hidden = logits[nodes], hidden[nodes]

  law_logprobs = verdict.probs
  if law_logprobs is not None:
    # After a whole draft q is known only if its logits were asked for.
    has_bonus_q = tree.draft.has_bonus_probs[draft_index]
    has_bonus_q &= step_config.needs_bonus_probs(state)
    has_q = (index < tree.draft.lengths[draft_index]) | has_bonus_q
    law_logprobs = jnp.log(jnp.minimum(law_logprobs, 1))
    log_q = jnp.where(has_q, law_logprobs[:, 0], jnp.nan)
    law_logprobs = law_logprobs.at[:, 0].set(log_q)

  def pad(x):
    padding = [(0, len(index) - len(x))] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding)

  logprobs = jax.vmap(processing.token_logprob)(logits, tokens[:num_positions])
  return Block(
    verdict=verdict,
    tokens=tokens,
    logprobs=pad(logprobs),
    hidden=pad(hidden),
    verifier_cache=cache,
    logits=None if state.logits is None else pad(logits),
    law_logprobs=law_logprobs,
    # The drafter may read the verifier's states, and a method depends on both.
    culprits=jnp.where(
      pad(~processing.is_sound(logits, hidden)),
      1,
      jnp.where(
        proposal.drafter_bad,
        2,
        jnp.where((index == n) & ~verdict.is_valid, 3, 0),
      ),
    ).astype(jnp.int32),
  )


def select_branch(
  condition: Bool[Array, ''],
  if_true: Callable[[Proposal], Block],
  if_false: Callable[[Proposal], Block],
  proposal: Proposal,
) -> Block:
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
  state: Row,
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


def commit(
  state: Row,
  params: Params,
  drafter_state: PyTree,
  block: Block,
  *,
  num_tokens: Int[Array, ''],
  ends_sequence: Bool[Array, ''],
  step_config: StepConfig,
) -> Row:
  """Writes a block's tokens, and rolls both caches back to length - 1."""
  verifier, drafter = step_config.models
  at, length = state.length - 1, state.length + num_tokens
  last_hidden = state.hidden
  if last_hidden is not None:
    new_hidden = block.hidden[jnp.maximum(num_tokens - 1, 0)]
    last_hidden = jnp.where(state.done, last_hidden, new_hidden)
  drafter_state = drafter.rollback(
    drafter_state,
    at,
    block.verdict.draft_index,
    length - 1,
    gamma=step_config.gamma,
    drafts=step_config.drafts,
  )
  drafter_state = drafter.observe(
    params.drafter,
    drafter_state,
    tokens=block.tokens,
    hidden=block.hidden,
    position=at,
    count=num_tokens,
  )
  return state.replace(
    tokens=write(state.tokens, state.length, block.tokens),
    length=length,
    blocks=state.blocks + ~state.done,
    verifier_cache=verifier.rewind(block.verifier_cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
    done=state.done | ends_sequence,
  )
