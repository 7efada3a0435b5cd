"""The protocol of drafters, and how a model reads a block of drafts.

A drafter is written for one sequence and `vmap`ped over the batch. It proposes
K drafts of gamma tokens and, with each token, the logits of the distribution
it was drawn from; plus, if it can, those of one more position, since the bonus
token's law may look at the drafter too.

Several drafts are read in one pass, as a tree. Its tokens lie level by level,
and each sees its own draft only (K = 2, gamma = 2):

  slot        at      at+1    at+2    at+3    at+4
  token       last    a_1     b_1     a_2     b_2
  position    at      at+1    at+1    at+2    at+2
  a_2 sees     x       x               x

Afterwards the slots of the draft that stays are moved to the front, where a
sequence without drafts would have them.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import sampling

State = PyTree


class Seen(NamedTuple):
  """What a drafter may look at: one sequence, and what the verifier keeps.

  Attributes:
    tokens: The sequence's, up to `length`; anything after it.
    length: How many; none has read the last of them.
    hidden: The verifier's last hidden state where it said the last token; None
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
      was drawn from the `probabilities` of its row. One-hot (0 and -inf) where
      a token was not drawn but chosen.
    count: Tokens of each draft that are there; what follows is not looked at.
    known: Whether row (count, j) is the drafter's. If not, it has nothing to
      say of what follows its draft.
    calls: Forward passes that this took.
  """

  tokens: Int[Array, 'K gamma']
  logits: Float[Array, 'gamma_1 K V']
  count: Int[Array, 'K']
  known: Bool[Array, 'K']
  calls: Int[Array, '']


class Equipped(NamedTuple):
  """A drafter and what it drafts with."""

  drafter: 'Drafter'
  params: PyTree


def whole(
  tokens: Int[Array, 'K gamma'],
  logits: Float[Array, 'gamma_1 K V'],
  calls: Int[Array, ''] | int,
) -> Draft:
  """Drafts that all have their length, and a row after it."""
  paths, gamma = tokens.shape
  return Draft(
    tokens=tokens,
    logits=logits,
    count=jnp.full(paths, gamma),
    known=jnp.ones(paths, bool),
    calls=jnp.asarray(calls, jnp.int32),
  )


class Drafter(Protocol):
  """Proposes tokens for one sequence. Hashable: it is a static argument.

  Attributes:
    needs_hidden: Whether it looks at the verifier's hidden state.
    independent: Whether several drafts are independent draws.
    most: Drafts that it can propose at a time; None for any number.
    slack: Slots that it may write beyond those of its drafts.
  """

  needs_hidden: bool
  independent: bool
  most: int | None
  slack: int

  def init(self, params: PyTree, cache_length: int) -> State:
    """The state before anything is read, with room for `cache_length`."""

  def read(
    self,
    params: PyTree,
    state: State,
    tokens: Int[Array, 'L'],
    position: Int[Array, ''],
  ) -> State:
    """The state after `tokens`, the first of which stands at `position`."""

  def propose(
    self,
    params: PyTree,
    state: State,
    seen: Seen,
    key: jax.Array,
    how: sampling.Processing,
    *,
    gamma: int,
    drafts: int,
  ) -> tuple[Draft, State, PyTree]:
    """Drafts after the last token seen; also gives the verifier's cache back.

    In that cache, slots from the last token's on may have been written.
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
      position: Of the token that the last draft began after.
      path: Which of several drafts the sequence goes on with.
      length: Tokens that the state is to hold.
      gamma: As for `propose`; 0 after `read`.
      drafts: As for `propose`.
    """

  def resize(self, params: PyTree, state: State, cache_length: int) -> State:
    """The same state with another room."""

  def probabilities(
    self, logits: Float[Array, 'V'], how: sampling.Processing
  ) -> Float[Array, 'V']:
    """What a token was drawn from, of a row of `Draft.logits`."""


class Plain:
  """What most drafters have in common: no state, and rows that are logits."""

  needs_hidden = False
  independent = True
  most: int | None = None
  slack = 0

  def init(self, params, cache_length):
    """No state."""
    return ()

  def read(self, params, state, tokens, position):
    """Nothing to remember."""
    return state

  def keep(self, state, position, path, length, *, gamma, drafts):
    """Nothing to forget."""
    return state

  def resize(self, params, state, cache_length):
    """Nothing to make room for."""
    return state

  def probabilities(self, logits, how):
    """Of both models alike."""
    return sampling.probabilities(logits, how)


def visible(
  tokens: Int[Array, 'L'], cache_length: int, at: Int[Array, ''], paths: int
) -> Bool[Array, 'L S']:
  """Which slots the tokens of a block see.

  Args:
    tokens: Where each stands in the block, from 0.
    cache_length: S.
    at: The slot that the block begins at.
    paths: Drafts side by side, token i being of draft i modulo paths.
  """
  slots = jnp.arange(cache_length)[None] - at
  seen = slots <= tokens[:, None]
  if paths > 1:
    own = (slots - tokens[:, None]) % paths == 0
    seen &= (slots < 0) | own
  return seen


def _inputs(model, cache, tokens, position, first, paths, shared):
  """Positions and mask of some tokens of a block."""
  index = first + jnp.arange(tokens.shape[0])
  length = model.cache_length(cache)
  mask = visible(index, length, position, paths)
  before = paths - 1 if shared else 0
  if before:
    # As if so many slots that nobody sees stood before the one that all see.
    mask |= jnp.arange(length) == position
  return position + jax.lax.div(index + before, paths), mask


def read_hidden(
  model: Any,
  params: PyTree,
  cache: State,
  tokens: Int[Array, 'L'],
  position: Int[Array, ''],
  *,
  first: Int[Array, ''] | int = 0,
  paths: int = 1,
  shared: bool = True,
) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], State]:
  """A model's logits, hidden states and cache after reading tokens at once.

  Args:
    model: Reads.
    params: Its parameters.
    cache: What it has read so far: up to the first of these tokens.
    tokens: A sequence, or some of a tree of drafts, level by level.
    position: Of the block's first token.
    first: Where in the block these tokens begin.
    paths: Drafts side by side.
    shared: Whether all of them begin after the same first token, or each after
      one of its own.
  """
  inputs = _inputs(model, cache, tokens, position, first, paths, shared)
  return model.with_hidden(params, tokens, *inputs, cache)


def read(
  model: Any, params: PyTree, cache: State, *args, **kwargs
) -> tuple[Float[Array, 'L V'], State]:
  """As `read_hidden`, without the hidden states."""
  logits, _, cache = read_hidden(model, params, cache, *args, **kwargs)
  return logits, cache
