"""A block of one sequence: draft gamma tokens, verify them, keep what stays."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods, schedules, verification
from cascades.decoding import faults
from cascades.decoding.block_stats import BlockStats
from cascades.decoding.drafter import (
  ROWS,
  Draft,
  DraftContext,
  Drafter,
  end_before_forbidden,
)
from cascades.decoding.reading import read_hidden, tree
from cascades.decoding.state import Models, Params, SamplingState, write
from cascades.methods import processing
from cascades.verification_config import (
  DRAFT,
  SEQUENTIAL,
  SINGLE_DRAFT,
  STANDARD,
  VerificationConfig,
)


def _check_drafter(
  drafter: Drafter, verification: VerificationConfig, drafts: int
) -> None:
  """Refuses what a drafter cannot do.

  Raises:
    ValueError: It has not so many drafts, or they are not independent draws
      and the verification wants them to be.
  """
  name = type(drafter).__name__
  if drafter.max_drafts is not None and drafts > drafter.max_drafts:
    raise ValueError(
      f'drafts: must be at most {drafter.max_drafts} with {name}, got {drafts}.'
    )
  if not drafter.independent and verification.verification != 'match':
    raise ValueError(
      f'verification: the drafts of {name} are not independent draws, as'
      f" {verification.verification!r} wants them; take 'match'."
    )


def tree_tokens(gamma: int, drafts: int, tree_size: int | None = None) -> int:
  """Drafted tokens that the verifier reads in a block.

  A single draft shares nothing: it is read whole, whatever the size.
  """
  if drafts == 1 or tree_size is None:
    return gamma * drafts
  return min(gamma * drafts, tree_size)


_WITHOUT_DRAFTS = dict(
  method=methods.get_method('speed'),
  verification=STANDARD,
  drafts=1,
  tree_size=None,
)


@dataclasses.dataclass(frozen=True)
class StepConfig:
  """All that is compiled into a block. Hashable: a static argument.

  Attributes:
    models: Who verifies, and who drafts.
    method: Says what stays, and what is sampled instead.
    gamma: Tokens drafted per block, >= 0; with 0 the verifier decodes alone,
      whatever the method, and how drafts are verified is left out. A
      sequential cascade has no blocks: there it is 1.
    verification: How blocks are verified.
    drafts: How many are drafted per block.
    tree_size: Most drafted tokens that the verifier reads in a block, at least
      `drafts`; None for all. Drafts that begin alike share what they begin
      with, and end before a level of the tree that might not fit.
    whole: Whether a block is read whole even where nothing was drafted: to be
      timed.

  Raises:
    ValueError: The verification does not support the method, or the drafter
      does not support so many drafts.
  """

  models: Models
  method: methods.Method
  gamma: int
  verification: VerificationConfig = STANDARD
  drafts: int = 1
  tree_size: int | None = None
  whole: bool = False

  def __post_init__(self):
    if self.gamma:
      self.verification.check(self.method, self.drafts)
      _check_drafter(self.models.drafter, self.verification, self.drafts)
    else:
      # Nothing is drafted, and so there is nothing to verify in another way:
      # one loop, whatever was asked for.
      for name, value in _WITHOUT_DRAFTS.items():
        object.__setattr__(self, name, value)
    if self.sequential:
      object.__setattr__(self, 'gamma', 1)

  @property
  def sequential(self) -> bool:
    """Whether there are no blocks: see `verification.single_draft.sequential`.

    A step is one token then, and both models read in each, for rows of a batch
    go on side by side; what the cascade would cost that asks its verifier only
    where it has to is counted apart.
    """
    return self.verification.verification == SEQUENTIAL

  def needs_bonus_probs(self, state: SamplingState) -> Bool[Array, '']:
    """Whether anyone asks what the drafter would say after its last token.

    The bonus token is drawn there; not every law of it looks at q, and none
    does where it is the verifier's. A sequential cascade has no bonus.
    """
    if self.sequential:
      return jnp.zeros((), bool)
    if self.drafts > 1 or self.verification.verification not in SINGLE_DRAFT:
      return jnp.ones((), bool)
    if not self.method.law_uses_q or self.verification.bonus != 'target':
      return jnp.zeros((), bool)
    strict = self.method.strict
    if strict is None or state.schedule is not None:
      return jnp.ones((), bool)
    return state.lenience != strict

  @property
  def allows_empty_draft(self) -> bool:
    """Whether a block may have no draft, and is read as one token then."""
    passes = self.models.drafter.allows_empty_draft and self.drafts == 1
    blocks = self.gamma > 0 and not self.sequential
    return passes and blocks and not self.whole

  @property
  def cache_headroom(self) -> int:
    """Slots that a block may write beyond a sequence."""
    return (self.gamma + 1) * self.drafts + self.models.drafter.cache_headroom

  @property
  def tree_tokens(self) -> int:
    """Drafted tokens that the verifier reads in a block."""
    return tree_tokens(self.gamma, self.drafts, self.tree_size)


def distributions(
  drafter_logits: Float[Array, 'V'],
  verifier_logits: Float[Array, 'V'],
  sampling: processing.SamplingParams,
  q: Callable[..., Float[Array, 'V']] = processing.processed_probs,
  gate: str = 'raw',
) -> methods.Distributions:
  """Makes the distributions that methods look at, at one position.

  Args:
    drafter_logits: What `Draft.row` gives.
    verifier_logits: The verifier's.
    sampling: Temperature, truncation and forbidden tokens.
    q: What a drafter's token was drawn from: `Drafter.processed_probs`.
    gate: What deferral rules see; see `VerificationConfig.gate`.
  """
  drawn_from = q(drafter_logits, sampling)
  p = processing.processed_probs(verifier_logits, sampling)
  gates = drawn_from, p
  if gate == 'raw':
    gates = tuple(
      processing.gate_probs(logits)
      for logits in (drafter_logits, verifier_logits)
    )
  return methods.Distributions(
    *(drawn_from, p, *gates),
    p_logits=verifier_logits.astype(jnp.float32),
    cap=None if sampling.cap is None else sampling.cap.inside(gates[1]),
  )


def keys_of(state: SamplingState) -> tuple[jax.Array, jax.Array]:
  """Random keys of the next block: of its drafts, and of its verification."""
  draft_key, verify_key = jax.vmap(jax.random.fold_in, (None, 0))(
    state.key, 2 * state.blocks + jnp.arange(2)
  )
  return draft_key, verify_key


class Proposed(NamedTuple):
  """A drafted block, and what its making left of both models' memories.

  Attributes:
    draft: The drafts.
    drafter_state: The drafter's.
    verifier_cache: The verifier's.
    drafter_bad: Where the drafter's logits are no distribution.
  """

  draft: Draft
  drafter_state: PyTree
  verifier_cache: PyTree
  drafter_bad: Bool[Array, 'gamma_1']


class Block(NamedTuple):
  """A drafted block that the verifier has read."""

  draft: Draft
  # Where each token of each draft is among those that the verifier read.
  places: Int[Array, 'K gamma_1']
  logits: Float[Array, 'L V']
  hidden: Float[Array, 'L D']
  verifier_cache: PyTree


def propose(
  state: SamplingState,
  params: Params,
  sampling: processing.SamplingParams,
  key: jax.Array,
  step_config: StepConfig,
) -> Proposed:
  """Step 1: drafts, the drafter's state, and the verifier's cache."""
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
  count, paths = step_config.gamma, step_config.drafts
  chex.assert_shape(draft.tokens, (paths, count))
  if draft.logits is not None:
    ids = draft.draft_vocab_ids
    size = verifier.vocab_size if ids is None else len(ids)
    chex.assert_shape(draft.logits, (count + 1, paths, size))
  chex.assert_shape([draft.lengths, draft.has_bonus_probs], (paths,))
  # A sequential cascade draws by the row at which its drafter stopped.
  draft, drafter_bad = faults.truncate(
    draft, needs_bonus_probs | step_config.sequential
  )
  return Proposed(
    end_before_forbidden(draft, sampling),
    drafter_state,
    verifier_cache,
    drafter_bad,
  )


def read_block(
  state: SamplingState,
  params: Params,
  proposed: Proposed,
  step_config: StepConfig,
  passed: bool = False,
) -> Block:
  """Step 2: the verifier's only call.

  Args:
    state: Before the block.
    params: Of both models.
    proposed: What was drafted.
    step_config: What is compiled.
    passed: That the last token is read alone.
  """
  draft, cache = proposed.draft, proposed.verifier_cache
  at = state.length - 1
  tokens, branches, places, draft = tree(
    state.tokens[at], draft, step_config.tree_tokens
  )
  logits, hidden, cache = read_hidden(
    *(step_config.models.verifier, params.verifier, cache),
    tokens[:1] if passed else tokens,
    at,
    branches,
    step_config.models.drafter.hidden_layers,
  )
  # Made once: fused into each of its readers, it would be made for each.
  logits = jax.lax.optimization_barrier(logits)
  return Block(draft, places, logits, hidden, cache)


class Verified(NamedTuple):
  """A block that was verified: gamma + 1 places along the draft that stays.

  Attributes:
    verdict: What stays.
    tokens: Those that stay, and the one after them.
    logprobs: How likely the verifier at temperature 1 thinks each.
    memory: What the schedule remembers of them all.
    hidden: Its hidden states where it says each.
    verifier_cache: With the slots of the draft that stays at the front.
    logits: What it says; None if not asked for.
    law: What each token follows; None if not asked for.
    verifier_bad: Where its logits are no distribution.
    method_bad: Where what the method draws from is none.
  """

  verdict: verification.Verdict
  tokens: Int[Array, 'gamma_1']
  logprobs: Float[Array, 'gamma_1']
  memory: PyTree
  hidden: Float[Array, 'gamma_1 D']
  verifier_cache: PyTree
  logits: Float[Array, 'gamma_1 V'] | None
  law: Float[Array, 'gamma_1 V'] | None
  verifier_bad: Bool[Array, 'gamma_1']
  method_bad: Bool[Array, 'gamma_1']


def _rows(
  block: Block, sampling: processing.SamplingParams, step_config: StepConfig
) -> Callable[[Array, Array], methods.Distributions]:
  """Gives the distributions after i tokens of draft j, when asked for."""
  q, gate = (
    step_config.models.drafter.processed_probs,
    step_config.verification.gate,
  )

  def row(i, j):
    index = i if step_config.drafts == 1 else block.places[j, i]
    of_verifier = block.logits[index]
    of_drafter = block.draft.logits_at(i, j, of_verifier.shape[-1])
    return distributions(of_drafter, of_verifier, sampling, q, gate)

  return row


def _leniences(
  state: SamplingState,
  draft: Draft,
  row: Callable[[Array, Array], methods.Distributions],
  step_config: StepConfig,
  places: int,
) -> tuple[Float[Array, 'K gamma_1'], PyTree]:
  """Leniences along each draft; and what the schedule remembers there.

  Args:
    state: Before the block.
    draft: Its drafts.
    row: The distributions after i tokens of draft j.
    step_config: What is compiled.
    places: How many of the gamma + 1 are looked at.
  """
  paths, gamma = draft.tokens.shape
  if state.schedule is None:
    return jnp.broadcast_to(state.lenience, (paths, gamma + 1)), ()

  def one(j, tokens):
    return schedules.along(
      *(state.schedule, state.memory, state.lenience, step_config.method),
      tokens[: places - 1],
      lambda i: row(i, j),
    )

  leniences, memory = jax.vmap(one)(jnp.arange(paths), draft.tokens)
  rest = (0, 0), (0, gamma + 1 - places)
  return jnp.pad(leniences, rest, 'edge'), memory


def verify_block(
  state: SamplingState,
  params: Params,
  sampling: processing.SamplingParams,
  key: jax.Array,
  proposed: Proposed,
  *,
  step_config: StepConfig,
  passed: bool = False,
  with_logits: bool = False,
  with_law: bool = False,
) -> Verified:
  """Steps 2 and 3: reads a block, and says what stays of it.

  Args:
    state: Before the block.
    params: Of both models.
    sampling: Temperature, truncation and forbidden tokens.
    key: Of the verification.
    proposed: What was drafted.
    step_config: What is compiled.
    passed: That there is no draft, or that none is read. What comes out is the
      same then, and a single row is made of all that has the size of the
      vocabulary.
    with_logits: Whether to give what the verifier says.
    with_law: Whether to say what each token follows.
  """
  block = read_block(state, params, proposed, step_config, passed)
  draft, row = block.draft, _rows(block, sampling, step_config)
  # Of a block that passed there is one row to be looked at.
  places = 1 if passed else step_config.gamma + 1
  leniences, memory = _leniences(state, draft, row, step_config, places)
  verdict = verification.verify(
    step_config.method,
    leniences,
    key,
    draft.tokens,
    row,
    step_config.verification,
    draft.lengths,
    draft.has_bonus_probs,
    passed,
  )
  n, path = verdict.num_accepted, verdict.path
  index = jnp.arange(step_config.gamma + 1)
  tokens = jnp.append(draft.tokens[path], verdict.next_token)
  tokens = jnp.where(index == n, verdict.next_token, tokens)
  logits, hidden, cache = block.logits, block.hidden, block.verifier_cache
  if step_config.drafts > 1:
    kept, at = block.places[path], state.length - 1
    cache = step_config.models.verifier.move(cache, at, at + kept)
    logits, hidden = logits[kept], hidden[kept]

  def alone(i):
    # As in verification: the verifier writes beyond the drafts where nothing is
    # known of q, or where it is to.
    beyond = i == draft.lengths[path]
    if step_config.verification.bonus == 'target':
      beyond &= ~draft.has_bonus_probs[path]
    return beyond

  def law(i):
    d = row(i, path)
    law = step_config.method.law(d, leniences[path, i])
    return jnp.where(alone(i), d.p, law)

  def padded(x):
    rest = [(0, len(index) - len(x))] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, rest)

  logprobs = jax.vmap(processing.token_logprob)(logits, tokens[:places])
  memory = remembered(
    state.schedule,
    jax.tree.map(lambda x: x[path, n], memory),
    *(step_config.method, row(n, path), leniences[path, n], verdict.next_token),
    alone(n),
  )
  return Verified(
    verdict=verdict,
    tokens=tokens,
    logprobs=padded(logprobs),
    memory=memory,
    hidden=padded(hidden),
    verifier_cache=cache,
    logits=padded(logits) if with_logits else None,
    law=padded(jax.vmap(law)(index[:places])) if with_law else None,
    verifier_bad=padded(~processing.is_sound(logits, hidden)),
    method_bad=(index == n) & ~verdict.is_valid,
  )


def remembered(
  schedule: Any,
  memory: PyTree,
  method: methods.Method,
  d: methods.Distributions,
  lenience: Float[Array, ''],
  token: Int[Array, ''],
  alone: Bool[Array, ''],
) -> PyTree:
  """What a schedule remembers after one more token; () without one.

  Args:
    schedule: A `schedules.Schedule`, or None.
    memory: Before the token.
    method: Whose law it follows.
    d: What both models say of its place.
    lenience: The method's there.
    token: What was written.
    alone: Whether the verifier wrote it alone, so that it gave nothing away.
  """
  if schedule is None:
    return ()
  cost = None
  if schedule.looks:
    cost = schedules.spent(method, d, lenience, token)
    cost = jax.tree.map(lambda x: jnp.where(alone, jnp.zeros_like(x), x), cost)
  return schedule.after(memory, token, cost)


def _read_for(
  drafted: Int[Array, ''], step_config: StepConfig
) -> Int[Array, '']:
  """Tokens that the verifier has to read for a sequence, whatever its batch."""
  all_of_them = jnp.asarray(step_config.tree_tokens + 1)
  if step_config.sequential:
    return jnp.ones((), jnp.int32)
  if not step_config.allows_empty_draft:
    return all_of_them
  return jnp.where(drafted > 0, all_of_them, 1)


def emitted_of(
  state: SamplingState,
  tokens: Int[Array, 'gamma_1'],
  kept: Int[Array, ''],
  stop_tokens: Int[Array, 'K'],
) -> tuple[Int[Array, ''], Bool[Array, '']]:
  """Step 4: how many of a block's tokens are emitted, and whether it ended.

  A sequence ends at the first stop token or at its limit, also inside a block.
  """
  index = jnp.arange(len(tokens))
  is_stop = (tokens[:, None] == stop_tokens).any(-1) & (index <= kept)
  stopped = is_stop.any()
  emitted = jnp.where(stopped, jnp.argmax(is_stop), kept) + 1
  emitted = jnp.minimum(emitted, state.limit - state.length)
  emitted = jnp.where(state.done, 0, emitted)
  ended = (is_stop & (index < emitted)).any()
  return emitted, ended | (state.length + emitted >= state.limit)


def commit(
  state: SamplingState,
  params: Params,
  drafter_state: PyTree,
  block: Verified,
  emitted: Int[Array, ''],
  ended: Bool[Array, ''],
  step_config: StepConfig,
) -> SamplingState:
  """Step 5: writes tokens, and rolls both caches back to the new length - 1.

  Args:
    state: Before the block.
    params: Of both models.
    drafter_state: The drafter's, after it proposed.
    block: What stays.
    emitted: How many of its tokens are written; 0 of a sequence that is done.
    ended: Whether the sequence ends with them.
    step_config: What is compiled.
  """
  verifier, drafter = step_config.models
  at, length = state.length - 1, state.length + emitted
  last_hidden = state.hidden
  if last_hidden is not None:
    last_said = block.hidden[jnp.maximum(emitted - 1, 0)]
    last_hidden = jnp.where(state.done, last_hidden, last_said)
  drafter_state = drafter.rollback(
    drafter_state,
    at,
    block.verdict.path,
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
    count=emitted,
  )
  return state.replace(
    tokens=write(state.tokens, state.length, block.tokens),
    length=length,
    blocks=state.blocks + ~state.done,
    verifier_cache=verifier.rewind(block.verifier_cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
    done=state.done | ended,
    memory=jax.tree.map(
      functools.partial(jnp.where, state.done), state.memory, block.memory
    ),
  )


def _one_of(
  first: Bool[Array, ''],
  one: Callable[[Proposed], Verified],
  other: Callable[[Proposed], Verified],
  proposed: Proposed,
) -> Verified:
  """`one(proposed)` or `other(proposed)`, whose caches change in place.

  What a `cond` gives back lies elsewhere than what it was given, and a copy of
  all caches takes a good part of the time of a token. What a loop carries stays
  where it is; so each of the two is a loop of one turn or none.
  """

  def split(verified):
    return verified.verifier_cache, verified._replace(verifier_cache=None)

  shapes = jax.eval_shape(lambda x: split(one(x))[1], proposed)
  carry = (
    proposed.verifier_cache,
    jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
  )
  for chosen, verify in ((first, one), (~first, other)):

    def turn(carry, verify=verify):
      _, cache, _ = carry
      given = proposed._replace(verifier_cache=cache)
      return jnp.zeros((), bool), *split(verify(given))

    _, *carry = jax.lax.while_loop(lambda x: x[0], turn, (chosen, *carry))
  cache, verified = carry
  return verified._replace(verifier_cache=cache)


def step(
  state: SamplingState,
  params: Params,
  sampling: processing.SamplingParams,
  stop_tokens: Int[Array, 'K'],
  *,
  step_config: StepConfig,
  with_logits: bool = False,
  with_law: bool = False,
) -> tuple[SamplingState, BlockStats]:
  """One block of one sequence, in the order of the paper.

  Args:
    state: What the sequence has come to so far.
    params: Both models' parameters.
    sampling: Temperature, truncation and forbidden tokens, for both models.
    stop_tokens: Ids that end the sequence; they are emitted.
    step_config: What is compiled.
    with_logits: Whether to give what the verifier says.
    with_law: Whether to say what each token follows.

  Returns:
    The state after the block, and what became of the block.
  """
  draft_key, verify_key = keys_of(state)

  # 1. Draft gamma tokens, so many times; and what each was drawn from.
  proposed = propose(state, params, sampling, draft_key, step_config)
  drafted = proposed.draft.lengths.sum()
  if step_config.sequential:
    # Where it stopped but knows what it would say, that is drawn later.
    drafted = jnp.maximum(
      drafted, proposed.draft.has_bonus_probs[0].astype(jnp.int32)
    )

  # 2. Read the last token and all drafts with the verifier, in one call.
  # 3. How many drafts stay, and the token after them.
  verify = functools.partial(
    verify_block,
    *(state, params, sampling, verify_key),
    step_config=step_config,
    with_logits=with_logits,
    with_law=with_law,
  )
  if step_config.allows_empty_draft:
    # One program for the batch: it reads blocks as long as a row has a draft.
    has_one = ((drafted > 0) & ~state.done).astype(jnp.int32)
    anyone = jax.lax.pmax(has_one, ROWS) > 0
    alone = functools.partial(verify, passed=True)
    block = _one_of(anyone, verify, alone, proposed)
  else:
    block = verify(proposed, passed=step_config.sequential)
  verdict, tokens = block.verdict, block.tokens
  n = verdict.num_accepted

  # 4. End at the first stop token or at the limit, also inside a block.
  emitted, ended = emitted_of(state, tokens, n, stop_tokens)
  fault = faults.locate(
    *(state, block.verifier_bad, proposed.drafter_bad, block.method_bad),
    emitted,
  )
  ended |= fault.is_fault

  # 5. Commit by moving `length`; roll both caches back.
  committed = commit(
    *(state, params, proposed.drafter_state, block, emitted, ended, step_config)
  )
  return committed, BlockStats(
    sources=jnp.where(jnp.arange(len(tokens)) < n, DRAFT, verdict.next_source),
    deferred=verdict.deferred,
    logprobs=block.logprobs,
    logits=block.logits,
    drafted=drafted,
    drafter_calls=proposed.draft.calls,
    read=_read_for(drafted, step_config),
    law=block.law,
    fault=fault,
  )
