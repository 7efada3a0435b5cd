"""Reads a block with a model: a sequence's next tokens, or a tree of drafts.

Drafts that begin with the same tokens share them. The tree is stored level by
level, and each token attends to its ancestors (the drafts a c, a d and b e):

  slot        at      at+1    at+2    at+3    at+4    at+5
  token       last    a       b       c       d       e
  position    at      at+1    at+1    at+2    at+2    at+2
  d attends    x       x                       x

After verification the slots of the accepted draft are moved to the front, where
a sequence without drafts would have them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import Draft
from cascades.decoding.model import Model


class TreeMask(NamedTuple):
  """The positions of a tree's tokens, and the tokens that each attends to.

  `levels` are relative to the first token of the block; `ancestors[i, j]` is
  True if token i attends to token j. All attend to the tokens before the block.
  """

  levels: Int[Array, 'L']
  ancestors: Bool[Array, 'L M']


class Tree(NamedTuple):
  """A sequence's last token, and drafts that follow it, level by level.

  `node_indices[j, i]` is the index in `tokens` of token i of draft j; the last
  token of the sequence is token 0 of each draft.
  """

  tokens: Int[Array, 'L']
  tree_mask: TreeMask | None
  node_indices: Int[Array, 'K gamma_1']
  draft: Draft


def build_tree(last: Int[Array, ''], draft: Draft, size: int) -> Tree:
  """Builds a tree of at most `size` drafted tokens.

  Drafts end before the first level that might not fit. Whether a level fits
  depends on earlier levels only: a draft that ended because of its own next
  token would be no draw from q, which would change the law.
  """
  num_drafts, gamma = draft.tokens.shape
  if num_drafts == 1:
    tokens = jnp.append(last, draft.tokens)
    return Tree(tokens, None, jnp.arange(gamma + 1)[None], draft)
  in_draft = jnp.arange(gamma) < draft.lengths[:, None]
  is_equal = draft.tokens[:, None] == draft.tokens[None]
  shares_prefix = jnp.cumprod(is_equal & in_draft[None], -1, dtype=bool)
  # The first draft with the same prefix owns the node.
  owner = jnp.argmax(shares_prefix, axis=1)
  is_owner = in_draft & (owner == jnp.arange(num_drafts)[:, None])
  nodes_above = jnp.cumsum(is_owner.sum(0)) - is_owner.sum(0)
  fits = nodes_above + in_draft.sum(0) <= size
  in_draft &= jnp.cumprod(fits, dtype=bool)
  is_owner &= in_draft
  # Numbered level by level, from 1.
  number = jnp.cumsum(is_owner.T.ravel()).reshape(gamma, num_drafts).T
  node = jnp.take_along_axis(number, owner, axis=0)
  nodes = jnp.pad(jnp.where(in_draft, node, size + 1), ((0, 0), (1, 0)))
  level = jnp.arange(gamma + 1)
  levels = jnp.broadcast_to(level, nodes.shape)
  tokens = jnp.pad(draft.tokens, ((0, 0), (1, 0)), constant_values=last)
  empty = jnp.zeros(size + 1, jnp.int32)
  is_above = level[:, None] >= level
  ancestors = jnp.zeros((size + 1, size + 1), bool)
  ancestors = ancestors.at[
    jnp.where(is_above, nodes[:, :, None], size + 1), nodes[:, None]
  ].set(True, mode='drop')
  lengths = in_draft.sum(-1)
  return Tree(
    tokens=empty.at[nodes].set(tokens, mode='drop'),
    tree_mask=TreeMask(empty.at[nodes].set(levels, mode='drop'), ancestors),
    node_indices=jnp.minimum(nodes, size),
    draft=draft._replace(
      lengths=lengths,
      has_bonus_probs=draft.has_bonus_probs | (lengths < draft.lengths),
    ),
  )


def parallel_drafts_mask(
  level: Int[Array, ''], num_drafts: int, gamma: int
) -> TreeMask:
  """Masks one level of drafts that share no tokens, while they are drafted."""
  index = jnp.arange((gamma + 1) * num_drafts)
  is_same_draft = index % num_drafts == jnp.arange(num_drafts)[:, None]
  ancestors = is_same_draft & (index // num_drafts <= level)
  return TreeMask(jnp.full((num_drafts,), level), ancestors)


def read_hidden(
  model: Model,
  params: PyTree,
  cache: PyTree,
  tokens: Int[Array, 'L'],
  position: Int[Array, ''],
  tree_mask: TreeMask | None = None,
  hidden_layers: tuple[int, ...] = (),
) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], PyTree]:
  """Reads tokens at once; returns logits, hidden states and the cache."""
  slots = jnp.arange(model.cache_length(cache))
  if tree_mask is None:
    positions = position + jnp.arange(tokens.shape[0])
    mask = slots <= positions[:, None]
  else:
    positions = position + tree_mask.levels
    mask = jnp.broadcast_to(slots < position, (*tokens.shape, *slots.shape))
    mask = jax.lax.dynamic_update_slice(
      mask, tree_mask.ancestors, (0, position)
    )
  return model.with_hidden(
    params, tokens, positions, mask, cache=cache, hidden_layers=hidden_layers
  )
