"""Prompt look-up: the drafter is the text itself.

Where the last few tokens stood before, what followed them is drafted again
(Saxena 2023; Yang et al. 2023, arXiv 2304.04487). No model, and no time.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades.decoding.drafter import Draft, Drafter


@dataclasses.dataclass(frozen=True)
class NgramDrafter(Drafter):
  """Drafts what followed the last tokens when they stood there before.

  Its tokens are chosen, not drawn: their q is one-hot. Where too little stands
  there before it has nothing to say, and the verifier writes. To draft in vain
  costs what the verifier takes for a block beside a token, of all rows of a
  batch; so the default wants a text that goes along with an earlier one for a
  while, and takes it that a token of that was another. Of several places the
  one that most tokens agree with counts, and of equals the latest.

  Attributes:
    window: Last tokens that are looked for.
    agreeing: How many of them must stand there, the last one among them.
  """

  window: int = 12
  agreeing: int = 9
  max_drafts = 1
  allows_empty_draft = True

  def propose(self, params, state, context, *, gamma, drafts):
    """What followed, at the place that agrees best."""
    length = context.length
    start, found = self._match(context.tokens, length)
    # What ends too soon is taken to go round: a text that repeats a word, or a
    # line, has its last match just before its end.
    period = jnp.maximum(1, length - start)
    tokens = context.tokens[start + jnp.arange(gamma) % period]
    count = jnp.where(found, gamma, 0)
    draft = Draft(
      tokens=tokens[None],
      logits=None,
      lengths=count[None],
      has_bonus_probs=jnp.zeros((1,), bool),
      calls=jnp.zeros((), jnp.int32),
    )
    return draft, state, context.verifier_cache

  def _match(
    self, tokens: Int[Array, 'T'], length: Int[Array, '']
  ) -> tuple[Int[Array, ''], Bool[Array, '']]:
    """Where the continuation begins, and whether there is one."""
    at = jnp.arange(tokens.shape[0])

    def same(back):
      """Whether one of the last tokens stands as far before each place."""
      last = tokens[jnp.maximum(length - back, 0)]
      there = (at >= back) & (at < length) & (back < length)
      return there & (jnp.roll(tokens, back) == last)

    agree = sum(same(back) for back in range(1, self.window + 1)) * same(1)
    most = agree.max()
    latest = jnp.where(agree == most, at, 0).max()
    return latest, most >= self.agreeing
