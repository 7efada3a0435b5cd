"""Trees of drafts that the verifier reads at once."""

import jax.numpy as jnp
import numpy as np

from cascades import decoding


def test_drafts_share_what_they_begin_with():
  # a c, a d, b e and a c f: the first and the last have two tokens in common.
  a, b, c, d, e, f = range(1, 7)
  tokens = jnp.array([[a, c, 0], [a, d, 0], [b, e, 0], [a, c, f]])
  draft = decoding.full_length_draft(tokens, jnp.zeros((4, 4, 7)), 0)._replace(
    lengths=jnp.array([2, 2, 2, 3])
  )
  found = decoding.build_tree(jnp.int32(9), draft, 12)
  assert found.tokens.tolist()[:7] == [9, a, b, c, d, e, f]
  np.testing.assert_array_equal(
    found.node_indices[:, :3], [[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3]]
  )
  assert found.node_indices[3, 3] == 6
  assert found.draft.lengths.tolist() == [2, 2, 2, 3]
  # Level 2 may have 4 tokens beside the 2 above it, level 3 one more.
  for size, count in ((6, [2, 2, 2, 3]), (5, [1, 1, 1, 1])):
    cut = decoding.build_tree(jnp.int32(9), draft, size)
    assert cut.draft.lengths.tolist() == count
    assert cut.tokens.shape == (size + 1,)
