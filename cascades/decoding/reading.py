"""How a model reads a block: a sequence's next tokens, or drafts as a tree.

Drafts that begin alike share the tokens that they begin with. The tree lies
level by level, and each token sees those that it follows (the drafts a c, a d
and b e):

  slot        at      at+1    at+2    at+3    at+4    at+5
  token       last    a       b       c       d       e
  position    at      at+1    at+1    at+2    at+2    at+2
  d sees       x       x                       x

Afterwards the slots of the draft that stays are moved to the front, where a
sequence without drafts would have them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import Draft


class Branches(NamedTuple):
  """Where tokens that are no plain sequence stand.

  Attributes:
    levels: Each token's position, less that of the block's first.
    sees: Which tokens of the block each sees; the first stands where the block
      begins. All see what was there before.
  """

  levels: Int[Array, 'L']
  sees: Bool[Array, 'L M']


class Tree(NamedTuple):
  """A sequence's last token, and drafts that begin after it.

  Attributes:
    tokens: The last token, then the drafts', level by level.
    branches: How they stand; None for a single draft.
    places: Where in `tokens` the i-th token of each draft is; at 0, the last
      token of the sequence.
    draft: The drafts, as far as they are in the tree.
  """

  tokens: Int[Array, 'L']
  branches: Branches | None
  places: Int[Array, 'K gamma_1']
  draft: Draft


def tree(last: Int[Array, ''], draft: Draft, size: int) -> Tree:
  """Drafts as a tree of at most `size` tokens, the last one not counted.

  Drafts end before the first level that might not fit. Whether it does hangs on
  the levels before it only: a draft that ended because of what its next token
  is would be another draw, and the law another law.
  """
  paths, gamma = draft.tokens.shape
  if paths == 1:
    tokens = jnp.append(last, draft.tokens)
    return Tree(tokens, None, jnp.arange(gamma + 1)[None], draft)
  there = jnp.arange(gamma) < draft.lengths[:, None]
  same = draft.tokens[:, None] == draft.tokens[None]
  alike = jnp.cumprod(same & there[None], -1, dtype=bool)
  # The first of the drafts that begin like this one; its tokens are read.
  first = jnp.argmax(alike, axis=1)
  own = there & (first == jnp.arange(paths)[:, None])
  before = jnp.cumsum(own.sum(0)) - own.sum(0)
  fits = before + there.sum(0) <= size
  there &= jnp.cumprod(fits, dtype=bool)
  own &= there
  # Numbered level by level, from 1.
  number = jnp.cumsum(own.T.ravel()).reshape(gamma, paths).T
  of_first = jnp.take_along_axis(number, first, axis=0)
  places = jnp.pad(jnp.where(there, of_first, size + 1), ((0, 0), (1, 0)))
  level = jnp.arange(gamma + 1)
  every = jnp.broadcast_to(level, places.shape)
  said = jnp.pad(draft.tokens, ((0, 0), (1, 0)), constant_values=last)
  empty = jnp.zeros(size + 1, jnp.int32)
  above = level[:, None] >= level
  sees = jnp.zeros((size + 1, size + 1), bool)
  sees = sees.at[
    jnp.where(above, places[:, :, None], size + 1), places[:, None]
  ].set(True, mode='drop')
  lengths = there.sum(-1)
  return Tree(
    tokens=empty.at[places].set(said, mode='drop'),
    branches=Branches(empty.at[places].set(every, mode='drop'), sees),
    places=jnp.minimum(places, size),
    draft=draft._replace(
      lengths=lengths,
      has_bonus_probs=draft.has_bonus_probs | (lengths < draft.lengths),
    ),
  )


def side_by_side(level: Int[Array, ''], paths: int, gamma: int) -> Branches:
  """The tokens of one level of drafts that share nothing, while drafted."""
  width = (gamma + 1) * paths
  of = jnp.arange(width)
  mine = of % paths == jnp.arange(paths)[:, None]
  return Branches(jnp.full((paths,), level), mine & (of // paths <= level))


def read_hidden(
  model: Any,
  params: PyTree,
  cache: PyTree,
  tokens: Int[Array, 'L'],
  position: Int[Array, ''],
  branches: Branches | None = None,
  hidden_layers: tuple[int, ...] = (),
) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], PyTree]:
  """A model's logits, hidden states and cache after reading tokens at once.

  Args:
    model: Reads.
    params: Its parameters.
    cache: What it has read so far: up to the first of these tokens.
    tokens: A sequence's next, or some of a tree's.
    position: Where the sequence goes on, or the tree begins.
    branches: How the tree's tokens stand.
    hidden_layers: After which layers hidden states are wanted; see
      `language.LanguageModel.with_hidden`.
  """
  slots = jnp.arange(model.cache_length(cache))
  if branches is None:
    positions = position + jnp.arange(tokens.shape[0])
    mask = slots <= positions[:, None]
  else:
    positions = position + branches.levels
    mask = jnp.broadcast_to(slots < position, (*tokens.shape, *slots.shape))
    mask = jax.lax.dynamic_update_slice(mask, branches.sees, (0, position))
  return model.with_hidden(
    params, tokens, positions, mask, cache, hidden_layers
  )


def read(
  model: Any, params: PyTree, cache: PyTree, *args, **kwargs
) -> tuple[Float[Array, 'L V'], PyTree]:
  """As `read_hidden`, without the hidden states."""
  logits, _, cache = read_hidden(model, params, cache, *args, **kwargs)
  return logits, cache
