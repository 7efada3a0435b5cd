"""Prompt look-up: the drafter is the text itself.

Where the last few tokens stood before, what followed them is drafted again
(Saxena 2023; Yang et al. 2023, arXiv 2304.04487). No model, and no time.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades.decoding.drafter import Draft, Plain


@dataclasses.dataclass(frozen=True)
class NgramDrafter(Plain):
  """Drafts what followed the last tokens when they stood there before.

  Its tokens are chosen, not drawn: their q is one-hot. Where nothing matches
  it has nothing to say, and the verifier writes. Of several matches the longest
  counts, and of equals the latest.

  Attributes:
    vocab_size: V.
    longest: Tokens that are looked for at first.
    shortest: And at last, >= 1.
  """

  vocab_size: int
  longest: int = 3
  shortest: int = 1
  most = 1
  may_pass = True

  def propose(self, params, state, seen, key, how, *, gamma, drafts):
    """The continuation of the longest match, of equals the latest."""
    length = seen.length
    start, found = self._match(seen.tokens, length)
    # What ends too soon is taken to go round: a text that repeats a word, or a
    # line, has its last match just before its end.
    period = jnp.maximum(1, length - start)
    tokens = seen.tokens[start + jnp.arange(gamma) % period]
    count = jnp.where(found, gamma, 0)
    chosen = jnp.arange(self.vocab_size) == tokens[:, None]
    logits = jnp.where(chosen, 0.0, -jnp.inf)
    draft = Draft(
      tokens=tokens[None],
      # The last row is not its own; any will do.
      logits=jnp.pad(logits, ((0, 1), (0, 0)))[:, None],
      count=count[None],
      known=jnp.zeros((1,), bool),
      calls=jnp.zeros((), jnp.int32),
    )
    return draft, state, seen.cache

  def _match(
    self, tokens: Int[Array, 'T'], length: Int[Array, '']
  ) -> tuple[Int[Array, ''], Bool[Array, '']]:
    """Where the continuation begins, and whether there is one."""
    at = jnp.arange(tokens.shape[0])
    # How many of the last tokens stand before each place.
    matches = jnp.zeros_like(at)
    run = (at >= 1) & (at < length)
    for back in range(1, self.longest + 1):
      last = tokens[jnp.maximum(length - back, 0)]
      run &= (jnp.roll(tokens, back) == last) & (at >= back) & (back < length)
      matches += run
    best = matches.max()
    latest = jnp.where(matches == best, at, 0).max()
    return latest, best >= self.shortest
