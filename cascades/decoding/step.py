"""A block of one sequence: draft gamma tokens, verify them, keep what stays."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods, verification
from cascades.decoding.drafter import ROWS, Draft, Drafter, Seen, permitted
from cascades.decoding.journal import Info
from cascades.decoding.reading import read_hidden, tree
from cascades.decoding.state import Models, Params, SamplingState, write
from cascades.methods import processing
from cascades.scheme import DRAFT, SEQUENTIAL, STANDARD, Scheme


def _check_drafter(drafter: Drafter, scheme: Scheme, drafts: int) -> None:
  """Refuses what a drafter cannot do.

  Raises:
    ValueError: It has not so many drafts, or they are not independent draws
      and the scheme wants them to be.
  """
  name = type(drafter).__name__
  if drafter.most is not None and drafts > drafter.most:
    raise ValueError(
      f'drafts: {drafts} will not do; {name} has {drafter.most} to offer.'
    )
  if not drafter.independent and scheme.verification != 'match':
    raise ValueError(
      f'verification: the drafts of {name} are not independent draws, as'
      f" {scheme.verification!r} wants them; take 'match'."
    )


def tree_tokens(gamma: int, drafts: int, tree_size: int | None = None) -> int:
  """Drafted tokens that the verifier reads in a block.

  A single draft shares nothing: it is read whole, whatever the size.
  """
  if drafts == 1 or tree_size is None:
    return gamma * drafts
  return min(gamma * drafts, tree_size)


_WITHOUT_DRAFTS = dict(
  method=methods.get_method('speed'), scheme=STANDARD, drafts=1, tree_size=None
)


@dataclasses.dataclass(frozen=True)
class Decoder:
  """All that is compiled into a block. Hashable: a static argument.

  Attributes:
    models: Who verifies, and who drafts.
    method: Says what stays, and what is sampled instead.
    gamma: Tokens drafted per block, >= 0; with 0 the verifier decodes alone,
      whatever the method, and how drafts are verified is left out. A
      sequential cascade has no blocks: there it is 1.
    scheme: How blocks are verified.
    drafts: How many are drafted per block.
    tree_size: Most drafted tokens that the verifier reads in a block, at least
      `drafts`; None for all. Drafts that begin alike share what they begin
      with, and end before a level of the tree that might not fit.
    whole: Whether a block is read whole even where nothing was drafted: to be
      timed.

  Raises:
    ValueError: The method cannot be verified by the scheme, or the drafter
      cannot draft so often.
  """

  models: Models
  method: methods.Method
  gamma: int
  scheme: Scheme = STANDARD
  drafts: int = 1
  tree_size: int | None = None
  whole: bool = False

  def __post_init__(self):
    if self.gamma:
      self.scheme.check(self.method, self.drafts)
      _check_drafter(self.models.drafter, self.scheme, self.drafts)
    else:
      # Nothing is drafted, and so there is nothing to verify in another way:
      # one loop, whatever was asked for.
      for name, value in _WITHOUT_DRAFTS.items():
        object.__setattr__(self, name, value)
    if self.sequential:
      object.__setattr__(self, 'gamma', 1)

  @property
  def sequential(self) -> bool:
    """Whether there are no blocks: see `sequential.step`."""
    return self.scheme.verification == SEQUENTIAL

  @property
  def may_pass(self) -> bool:
    """Whether a block may have no draft, and is read as one token then."""
    passes = self.models.drafter.may_pass and self.drafts == 1
    return passes and self.gamma > 0 and not self.whole

  @property
  def slack(self) -> int:
    """Slots that a block may write beyond a sequence."""
    return (self.gamma + 1) * self.drafts + self.models.drafter.slack

  @property
  def tree_tokens(self) -> int:
    """Drafted tokens that the verifier reads in a block."""
    return tree_tokens(self.gamma, self.drafts, self.tree_size)


def distributions(
  drafter_logits: Float[Array, 'V'],
  verifier_logits: Float[Array, 'V'],
  how: processing.Processing,
  q: Callable[..., Float[Array, 'V']] = processing.probabilities,
  gate: str = 'raw',
) -> methods.Distributions:
  """What methods look at, of both models' logits at one position.

  Args:
    drafter_logits: A row of `Draft.logits`.
    verifier_logits: The verifier's.
    how: From logits to probabilities.
    q: What a drafter's token was drawn from: `Drafter.probabilities`.
    gate: What deferral rules see; see `Scheme.gate`.
  """
  drawn_from = q(drafter_logits, how)
  p = processing.probabilities(verifier_logits, how)
  if gate == 'processed':
    return methods.Distributions(drawn_from, p, drawn_from, p)
  return methods.Distributions(
    q=drawn_from,
    p=p,
    q_gate=processing.gate_probabilities(drafter_logits),
    p_gate=processing.gate_probabilities(verifier_logits),
  )


def keys_of(state: SamplingState) -> tuple[jax.Array, jax.Array]:
  """Random keys of the next block: of its drafts, and of its verification."""
  draft_key, verify_key = jax.vmap(jax.random.fold_in, (None, 0))(
    state.key, 2 * state.blocks + jnp.arange(2)
  )
  return draft_key, verify_key


class Block(NamedTuple):
  """A drafted block, and what both models say of it."""

  draft: Draft
  drafted: Int[Array, '']
  drafter_state: PyTree
  # Where each token of each draft is among those that the verifier read.
  places: Int[Array, 'K gamma_1']
  logits: Float[Array, 'L V']
  hidden: Float[Array, 'L D']
  verifier_cache: PyTree


def propose(
  state: SamplingState,
  params: Params,
  how: processing.Processing,
  key: jax.Array,
  decoder: Decoder,
) -> tuple[Draft, PyTree, PyTree]:
  """Step 1: drafts, the drafter's state, and the verifier's cache."""
  verifier, drafter = decoder.models
  seen = Seen(state.tokens, state.length, state.hidden, state.verifier_cache)
  draft, drafter_state, verifier_cache = drafter.propose(
    params.drafter,
    state.drafter_state,
    seen,
    key,
    how,
    gamma=decoder.gamma,
    drafts=decoder.drafts,
  )
  count, paths = decoder.gamma, decoder.drafts
  chex.assert_shape(draft.tokens, (paths, count))
  chex.assert_shape(draft.logits, (count + 1, paths, verifier.vocab_size))
  chex.assert_shape([draft.count, draft.known], (paths,))
  return permitted(draft, how), drafter_state, verifier_cache


def draft_and_read(
  state: SamplingState,
  params: Params,
  how: processing.Processing,
  key: jax.Array,
  decoder: Decoder,
) -> Block:
  """Steps 1 and 2: drafts, and the verifier's only call."""
  verifier = decoder.models.verifier
  draft, drafter_state, verifier_cache = propose(
    state, params, how, key, decoder
  )
  drafted = draft.count.sum()
  at = state.length - 1
  tokens, branches, places, draft = tree(
    state.tokens[at], draft, decoder.tree_tokens
  )

  read = functools.partial(
    read_hidden, verifier, params.verifier, taps=decoder.models.drafter.taps
  )

  def whole(cache):
    return read(cache, tokens, at, branches)

  def last(cache):
    said, hidden, cache = read(cache, tokens[:1], at)
    rest = (0, len(tokens) - 1), (0, 0)
    return jnp.pad(said, rest), jnp.pad(hidden, rest), cache

  if decoder.may_pass:
    # One program for the batch: it reads blocks as long as a row has a draft.
    has_one = ((drafted > 0) & ~state.done).astype(jnp.int32)
    anyone = jax.lax.pmax(has_one, ROWS) > 0
    logits, hidden, verifier_cache = jax.lax.cond(
      anyone, whole, last, verifier_cache
    )
  else:
    logits, hidden, verifier_cache = whole(verifier_cache)
  # Made once: fused into each of its readers, it would be made for each.
  logits = jax.lax.optimization_barrier(logits)
  return Block(
    *(draft, drafted, drafter_state, places, logits, hidden, verifier_cache)
  )


def _read_for(block: Block, decoder: Decoder) -> Int[Array, '']:
  """Tokens that the verifier has to read for a sequence, whatever its batch."""
  all_of_them = jnp.asarray(decoder.tree_tokens + 1)
  if not decoder.may_pass:
    return all_of_them
  return jnp.where(block.drafted > 0, all_of_them, 1)


def _rows(
  block: Block, how: processing.Processing, decoder: Decoder
) -> Callable[[Array, Array], methods.Distributions]:
  """What methods look at after i tokens of draft j; made where it is asked."""
  q, gate = decoder.models.drafter.probabilities, decoder.scheme.gate

  def row(i, j):
    of_verifier = block.logits[i if decoder.drafts == 1 else block.places[j, i]]
    return distributions(block.draft.logits[i, j], of_verifier, how, q, gate)

  return row


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
  block: Block,
  path: Int[Array, ''],
  tokens: Int[Array, 'gamma_1'],
  emitted: Int[Array, ''],
  decoder: Decoder,
) -> tuple[SamplingState, Float[Array, 'gamma_1 V']]:
  """Step 5: writes tokens, and rolls both caches back to the new length - 1.

  Of several drafts, the slots of the one that stays come to the front first.
  Also gives the verifier's logits along it.
  """
  verifier, drafter = decoder.models
  at, length = state.length - 1, state.length + emitted
  cache, logits, hidden = block.verifier_cache, block.logits, block.hidden
  if decoder.drafts > 1:
    kept = block.places[path]
    cache = verifier.move(cache, at, at + kept)
    logits, hidden = logits[kept], hidden[kept]
  last_hidden = state.hidden
  if last_hidden is not None:
    last_said = hidden[jnp.maximum(emitted - 1, 0)]
    last_hidden = jnp.where(state.done, last_hidden, last_said)
  drafter_state = drafter.keep(
    block.drafter_state,
    at,
    path,
    length - 1,
    gamma=decoder.gamma,
    drafts=decoder.drafts,
  )
  drafter_state = drafter.absorb(
    params.drafter, drafter_state, tokens, hidden, at, emitted
  )
  committed = state.replace(
    tokens=write(state.tokens, state.length, tokens),
    length=length,
    blocks=state.blocks + ~state.done,
    verifier_cache=verifier.rewind(cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
  )
  return committed, logits


def step(
  state: SamplingState,
  params: Params,
  how: processing.Processing,
  stop_tokens: Int[Array, 'K'],
  *,
  decoder: Decoder,
  with_law: bool = False,
) -> tuple[SamplingState, Info]:
  """One block of one sequence, in the order of the paper.

  Args:
    state: What the sequence has come to so far.
    params: Both models' parameters.
    how: From logits to probabilities, for both models.
    stop_tokens: Ids that end the sequence; they are emitted.
    decoder: What is compiled.
    with_law: Whether to say what each token follows.

  Returns:
    The state after the block, and what became of the block.
  """
  method = decoder.method
  draft_key, verify_key = keys_of(state)

  # 1. Draft gamma tokens, so many times; and what each was drawn from.
  # 2. Read the last token and all drafts with the verifier, in one call.
  block = draft_and_read(state, params, how, draft_key, decoder)
  draft, row = block.draft, _rows(block, how, decoder)

  # 3. How many drafts stay, and the token after them.
  verdict = verification.verify(
    method,
    state.lenience,
    verify_key,
    draft.tokens,
    row,
    decoder.scheme,
    draft.count,
    draft.known,
  )
  n, path = verdict.num_accepted, verdict.path
  index = jnp.arange(decoder.gamma + 1)
  tokens = jnp.append(draft.tokens[path], verdict.next_token)
  tokens = jnp.where(index == n, verdict.next_token, tokens)

  # 4. End at the first stop token or at the limit, also inside a block.
  emitted, ended = emitted_of(state, tokens, n, stop_tokens)

  # 5. Commit by moving `length`; roll both caches back.
  committed, logits = commit(
    state, params, block, path, tokens, emitted, decoder
  )
  committed = committed.replace(done=state.done | ended)

  def law(i):
    d = row(i, path)
    # As in verification: the verifier writes where nothing is known of q.
    unknown = (i == draft.count[path]) & ~draft.known[path]
    return jnp.where(unknown, d.p, method.law(d, state.lenience))

  return committed, Info(
    sources=jnp.where(index < n, DRAFT, verdict.next_source),
    deferred=verdict.deferred,
    logprobs=jax.vmap(processing.log_probability)(logits, tokens),
    logits=logits,
    drafted=block.drafted,
    drafter_calls=draft.calls,
    read=_read_for(block, decoder),
    law=jax.vmap(law)(index) if with_law else None,
  )
