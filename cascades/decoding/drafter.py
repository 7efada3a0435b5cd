"""The protocol of drafters.

A drafter is written for one sequence and `vmap`ped over the batch. It proposes
K drafts of gamma tokens and, with each token, the logits of the distribution
it was drawn from; plus, if it can, those of one more position, since the bonus
token's law may look at the drafter too.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.methods import processing

State = PyTree

# The axis of a batch, by which a drafter knows when all its rows have stopped.
ROWS = 'rows'


class Seen(NamedTuple):
  """What a drafter may look at: one sequence, and what the verifier keeps.

  Attributes:
    tokens: The sequence's, up to `length`; anything after it.
    length: How many; none has read the last of them.
    hidden: The verifier's hidden state where it said the last token; None
      unless the drafter asks for it.
    cache: The verifier's, which holds all but the last token.
  """

  tokens: Int[Array, 'T']
  length: Int[Array, '']
  hidden: Float[Array, 'D'] | None
  cache: PyTree


class Draft(NamedTuple):
  """A block of drafted tokens.

  Attributes:
    tokens: K drafts.
    logits: Row (i, j) is the drafter's after i tokens of draft j. Each token
      was drawn from the `probabilities` of its row. None where all tokens were
      not drawn but chosen.
    count: Tokens of each draft that are there; what follows is not looked at.
    known: Whether row (count, j) is the drafter's. If not, it has nothing to
      say of what follows its draft.
    calls: Forward passes that this took.
    said: Ids of the tokens that the rows of `logits` are of, upwards; None
      where they are of all.
  """

  tokens: Int[Array, 'K gamma']
  logits: Float[Array, 'gamma_1 K N'] | None
  count: Int[Array, 'K']
  known: Bool[Array, 'K']
  calls: Int[Array, '']
  said: Int[Array, 'N'] | None = None

  def row(
    self, i: Int[Array, ''] | int, j: Int[Array, ''] | int, vocab_size: int
  ) -> Float[Array, 'V']:
    """Logits of all tokens; one-hot, 0 and -inf, of a token that was chosen.

    After the last of those, where nothing was chosen, it may be any.
    """
    if self.logits is not None:
      row = self.logits[i, j]
      if self.said is None:
        return row
      return processing.spread(row, self.said, vocab_size)
    token = jnp.append(self.tokens[j], 0)[i]
    return jnp.where(jnp.arange(vocab_size) == token, 0.0, -jnp.inf)


class BoundDrafter(NamedTuple):
  """A drafter and what it drafts with."""

  drafter: 'Drafter'
  params: PyTree


def whole(
  tokens: Int[Array, 'K gamma'],
  logits: Float[Array, 'gamma_1 K N'] | None,
  calls: Int[Array, ''] | int,
  said: Int[Array, 'N'] | None = None,
) -> Draft:
  """Drafts that all have their length, and a row after it."""
  paths, gamma = tokens.shape
  return Draft(
    tokens=tokens,
    logits=logits,
    count=jnp.full(paths, gamma),
    known=jnp.ones(paths, bool),
    calls=jnp.asarray(calls, jnp.int32),
    said=said,
  )


def ended(draft: Draft, says: Bool[Array, 'K gamma_1']) -> Draft:
  """Drafts that end before the first token which a row does not say.

  Args:
    draft: The drafts.
    says: Of which rows a token can be drawn. If the row after a draft is not
      one of them, its drafter has nothing to say of what follows it.
  """
  index = jnp.arange(says.shape[1])
  count = jnp.where(says | (index >= draft.count[:, None]), index[-1], index)
  count = jnp.minimum(count.min(-1), draft.count)
  at_end = jnp.take_along_axis(says, count[:, None], 1)[:, 0]
  return draft._replace(count=count, known=draft.known & at_end)


def permitted(draft: Draft, how: processing.Processing) -> Draft:
  """Drafts that end where forbidden tokens leave their drafter nothing to say.

  That is where a token was chosen that is forbidden: it is not proposed, and
  the verifier writes there. Where tokens are drawn nothing changes.
  """
  if how.forbidden is None:
    return draft
  if draft.logits is None:
    says = jnp.pad(~how.forbidden[draft.tokens], ((0, 0), (0, 1)))
    return ended(draft, says)
  return ended(draft, processing.says(draft.logits, how.among(draft.said)).T)


class Drafter(Protocol):
  """Proposes tokens for one sequence. Hashable: it is a static argument.

  A class that inherits these methods has no state, and rows that are logits.

  Attributes:
    needs_hidden: Whether it looks at the verifier's hidden states.
    taps: After how many of the verifier's layers, which are then given one
      after the other; () for its last state, which the logits are made of.
    independent: Whether its drafts are independent draws, each token from the
      probabilities of its row. What is not can only be matched.
    most: Drafts that it can propose at a time; None for any number.
    slack: Slots that it may write beyond those of its drafts.
    may_pass: Whether it may have no draft at all: where no row of a batch has
      one, the verifier reads one token then, and not a whole block.
  """

  needs_hidden: bool = False
  taps: tuple[int, ...] = ()
  independent: bool = True
  most: int | None = None
  slack: int = 0
  may_pass: bool = False

  def init(self, params: PyTree, cache_length: int) -> State:
    """The state before anything is read, with room for `cache_length`."""
    return ()

  def read(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    position: Int[Array, ''],
  ) -> State:
    """The state after `tokens`, the first of which stands at `position`."""
    return state

  def propose(
    self,
    params: PyTree,
    state: State,
    seen: Seen,
    key: jax.Array,
    how: processing.Processing,
    *,
    gamma: int,
    drafts: int,
    beyond: Bool[Array, ''],
  ) -> tuple[Draft, State, PyTree]:
    """Drafts after the last token seen; also gives the verifier's cache back.

    In that cache, slots from the last token's on may have been written.

    Args:
      params: Its own.
      state: It has read all that was seen but the last token; where that was
        not asked for, it may lack the last token of a whole draft too.
      seen: What it may look at.
      key: Of this block.
      how: From logits to probabilities.
      gamma: Tokens of a draft.
      drafts: How many drafts.
      beyond: Whether the row after a whole draft is asked for; if not, it may
        be any, and where no row of the batch asks, a pass is saved.
    """

  def keep(
    self,
    state: State,
    position: Int[Array, ''],
    path: Int[Array, ''],
    length: Int[Array, ''],
    *,
    gamma: int,
    drafts: int,
  ) -> State:
    """The state as it was when it had read `length` tokens.

    Args:
      state: After `propose`, or after `read`.
      position: Where the token stands that the last draft began after.
      path: Which of several drafts the sequence goes on with.
      length: Tokens that the state is to hold.
      gamma: Tokens per draft that `propose` was asked for; 0 after `read`.
      drafts: How many drafts `propose` was asked for; 1 after `read`.
    """
    return state

  def absorb(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    hidden: Float[Array, 'L D'],
    position: Int[Array, ''],
    count: Int[Array, ''],
  ) -> State:
    """The state that knows of where the verifier said some tokens.

    It is called after `keep`, when a prompt or a block was read.

    Args:
      params: The drafter's.
      state: It has read what was written before `tokens`.
      tokens: The next of the sequence, all that it has by now.
      hidden: The verifier's hidden states where it said each of them.
      position: Where the first of those states stands; the token that was said
        there stands one further.
      count: How many there are; what follows is not of the sequence.
    """
    return state

  def resize(self, params: PyTree, state: State, cache_length: int) -> State:
    """The same state with another room."""
    return state

  def probabilities(
    self, logits: Float[Array, 'V'], how: processing.Processing
  ) -> Float[Array, 'V']:
    """What a token was drawn from, of `Draft.row`."""
    return processing.probabilities(logits, how)
