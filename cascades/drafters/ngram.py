"""Prompt look-up: drafts that repeat continuations of the text.

If the last tokens occurred earlier in the text, the tokens that followed them
are drafted again (Saxena 2023; Yang et al. 2023, arXiv 2304.04487). There is no
model, and drafting takes no time.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades import arguments
from cascades.decoding.drafter import Draft, Drafter
from cascades.drafters.unbound import UnboundDrafter, parse_argument


@dataclasses.dataclass(frozen=True)
class NgramDrafter(UnboundDrafter, Drafter):
  """Drafts the tokens that followed an earlier occurrence of the last ones.

  The q of each drafted token is one-hot. Without an occurrence the draft is
  empty and the verifier decodes alone. A rejected draft costs every row of the
  batch the difference between reading a block and reading a token, so the
  default requires a long match, in which some tokens may differ. The occurrence
  with the most equal tokens is used; the latest one breaks ties.

  Attributes:
    window: Number of last tokens that are compared, 1 to 256.
    min_match: Tokens of the window that must be equal, the last one among them.
  """

  window: int = 12
  min_match: int = 9
  max_drafts = 1
  allows_empty_draft = True
  syntax = 'ngram:3 (prompt look-up, which repeats continuations of the text)'

  def __post_init__(self) -> None:
    # Each compared token adds code to compile.
    for name, high in ('window', 256), ('min_match', self.window):
      number = arguments.integer(name, getattr(self, name), 1, high)
      object.__setattr__(self, name, number)

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Returns the drafter of 'ngram' or 'ngram:3'."""
    if name == 'ngram':
      return cls()
    window = parse_argument(name, 'tokens')
    return cls(window, window)

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts the continuation of the best match."""
    length = context.length
    start, is_match = self._best_match(context.tokens, length)
    # A continuation that reaches the end of the text is repeated: the last
    # match of a repeated word or line lies just before the end.
    period = jnp.maximum(1, length - start)
    tokens = context.tokens[start + jnp.arange(gamma) % period]
    lengths = jnp.where(is_match, gamma, 0)
    draft = Draft(
      tokens=tokens[None],
      logits=None,
      lengths=lengths[None],
      has_bonus_probs=jnp.zeros((1,), bool),
      calls=jnp.zeros((), jnp.int32),
    )
    return draft, state, context.verifier_cache

  def _best_match(
    self, tokens: Int[Array, 'T'], length: Int[Array, '']
  ) -> tuple[Int[Array, ''], Bool[Array, '']]:
    """Returns the index of the continuation, and True if there is one."""
    index = jnp.arange(tokens.shape[0])

    def is_equal(distance):
      """Compares the token at a distance before the end and each index."""
      token = tokens[jnp.maximum(length - distance, 0)]
      in_text = (index >= distance) & (index < length) & (distance < length)
      return in_text & (jnp.roll(tokens, distance) == token)

    num_equal = sum(is_equal(x) for x in range(1, self.window + 1))
    num_equal = num_equal * is_equal(1)
    best = num_equal.max()
    latest = jnp.where(num_equal == best, index, 0).max()
    return latest, best >= self.min_match
