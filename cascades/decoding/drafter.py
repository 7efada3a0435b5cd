"""The protocol of drafters, and the values that pass through it.

A drafter is written for one sequence and `vmap`ped over the batch. It proposes
K drafts of gamma tokens, each token with the logits of the distribution that it
was drawn from. It may also give the logits after its last token, since the
target of the bonus token may depend on q there.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.methods import processing

State = PyTree

# The `vmap` axis of a batch; collectives over it see all rows of the batch.
ROWS = 'rows'


class DraftContext(NamedTuple):
  """A sequence, the verifier's states of it, and the request for drafts.

  Attributes:
    tokens: The sequence up to `length`; later tokens are undefined.
    length: Tokens of the sequence. No model has read the last token.
    hidden: The verifier's hidden state that predicted the last token; None
      unless `Drafter.needs_hidden`.
    verifier_cache: The verifier's cache of all tokens but the last.
    key: Random key of the block.
    sampling: Sampling parameters of the drafter.
    needs_bonus_probs: True if the bonus token's target depends on q after the
      last draft. Otherwise those logits may be anything, and a drafter saves
      the forward pass if no row of the batch needs them.
    forced: Tokens that heads draft in place of draws from q; None draws.
  """

  tokens: Int[Array, 'T']
  length: Int[Array, '']
  hidden: Float[Array, 'D'] | None
  verifier_cache: PyTree
  key: jax.Array
  sampling: processing.SamplingParams
  needs_bonus_probs: Bool[Array, '']
  forced: Int[Array, 'gamma'] | None = None


class Draft(NamedTuple):
  """K drafts of up to gamma tokens, and the logits they were drawn from.

  Attributes:
    tokens: The drafted tokens.
    logits: [i, j] are the drafter's logits after i tokens of draft j. None if
      each q is one-hot at the drafted token.
    lengths: Tokens of each draft; later tokens are ignored.
    has_bonus_probs: True if the logits after the last token of a draft are the
      drafter's; False if q is undefined there.
    calls: Forward passes of the drafter.
    draft_vocab_ids: Increasing ids of the N tokens that have `logits`; None if
      N is V.
  """

  tokens: Int[Array, 'K gamma']
  logits: Float[Array, 'gamma_1 K N'] | None
  lengths: Int[Array, 'K']
  has_bonus_probs: Bool[Array, 'K']
  calls: Int[Array, '']
  draft_vocab_ids: Int[Array, 'N'] | None = None

  def logits_at(
    self,
    position: Int[Array, ''] | int,
    draft: Int[Array, ''] | int,
    vocab_size: int,
  ) -> Float[Array, 'V']:
    """Returns logits over the vocabulary after `position` tokens of a draft.

    They are 0 and -inf for a one-hot q, and undefined after its last token.
    """
    if self.logits is not None:
      logits = self.logits[position, draft]
      if self.draft_vocab_ids is None:
        return logits
      return processing.scatter_to_vocab(
        logits, self.draft_vocab_ids, vocab_size
      )
    token = jnp.append(self.tokens[draft], 0)[position]
    return jnp.where(jnp.arange(vocab_size) == token, 0.0, -jnp.inf)


class BoundDrafter(NamedTuple):
  """A drafter and the parameters that its methods take."""

  drafter: 'Drafter'
  params: PyTree


def full_length_draft(
  tokens: Int[Array, 'K gamma'],
  logits: Float[Array, 'gamma_1 K N'] | None,
  calls: Int[Array, ''] | int,
  draft_vocab_ids: Int[Array, 'N'] | None = None,
) -> Draft:
  """Makes a `Draft` whose drafts have gamma tokens and bonus logits each."""
  num_drafts, gamma = tokens.shape
  return Draft(
    tokens=tokens,
    logits=logits,
    lengths=jnp.full(num_drafts, gamma),
    has_bonus_probs=jnp.ones(num_drafts, bool),
    calls=jnp.asarray(calls, jnp.int32),
    draft_vocab_ids=draft_vocab_ids,
  )


@runtime_checkable
class Drafter(Protocol):
  """Proposes tokens for one sequence. Hashable: a static argument of `jit`.

  The default methods are those of a drafter without a state. `Draft.logits` are
  processed like the verifier's. Every method takes the drafter's parameters
  and the state of one sequence.

  Attributes:
    needs_hidden: True if `propose` or `observe` reads the verifier's hidden
      states.
    hidden_layers: Numbers of verifier layers, 0 (the embeddings) to all, after
      which hidden states are read and concatenated; () reads the final state,
      from which logits are computed.
    independent: True if drafts are independent draws, each token from the
      probabilities of its logits. Other drafts need the verification 'match'.
    max_drafts: Largest number of drafts per block; None for any number.
    allows_empty_draft: True if a draft may have no token. If no row of a batch
      has a draft, the verifier reads one token instead of a block.
  """

  needs_hidden: bool = False
  hidden_layers: tuple[int, ...] = ()
  independent: bool = True
  max_drafts: int | None = None
  allows_empty_draft: bool = False

  def init(self, params: PyTree, cache_length: int) -> State:
    """Returns the state of an empty sequence, with room for some tokens."""
    return ()

  def read(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    position: Int[Array, ''],
  ) -> State:
    """Returns the state after reading the tokens from `position` on."""
    return state

  def propose(
    self,
    params: PyTree,
    state: State,
    context: DraftContext,
    *,
    gamma: int,
    drafts: int,
  ) -> tuple[Draft, State, PyTree]:
    """Drafts K = `drafts` times gamma tokens after a sequence's last token.

    The state has read all tokens but the last. After a fully accepted block
    without `needs_bonus_probs`, it may also lack the token before the last.

    Returns:
      The drafts; the new state; and the verifier's cache, whose slots from the
      last token's on may have been overwritten.
    """
    ...

  def rollback(
    self,
    state: State,
    position: Int[Array, ''],
    draft_index: Int[Array, ''],
    length: Int[Array, ''],
    *,
    gamma: int,
    drafts: int,
  ) -> State:
    """Rolls the state back to the first `length` tokens.

    Called after `propose`, or after `read` with gamma 0 and one draft. The
    drafts followed the token at `position`, and the accepted tokens belong to
    `draft_index`.
    """
    return state

  def observe(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    hidden: Float[Array, 'L D'],
    position: Int[Array, ''],
    count: Int[Array, ''],
  ) -> State:
    """Returns the state after observing the verifier's hidden states.

    Called after `rollback`, once per prompt and once per block. hidden[i], at
    `position` + i of the sequence, predicts tokens[i], the token after it; the
    first `count` of them are valid.
    """
    return state

  def resize(self, params: PyTree, state: State, cache_length: int) -> State:
    """Returns the state with room for `cache_length` tokens."""
    return state
