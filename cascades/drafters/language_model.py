"""Language models as drafters."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cascades.decoding.drafter import Drafter
from cascades.decoding.reading import read
from cascades.drafters.token_drafting import draft_tokens


@dataclasses.dataclass(frozen=True)
class ModelDrafter(Drafter):
  """A language model that drafts token by token.

  The last token of a draft is read only if the bonus token's target depends on
  q. So the cache may lack the token before the last after a fully accepted
  block, and a single draft begins by reading the last two tokens in one pass.
  Several drafts take gamma + 1 passes.

  Attributes:
    model: The language model.
    adaptive: True if a draft stops before its most probable token, at
      temperature 1 and before truncation, is less probable than a threshold
      (BiLD's fallback, Kim et al. 2023, arXiv 2302.07863). The parameters are
      then (those of the model, threshold). A draft stops before a token is
      drawn, so the law is kept.
  """

  model: Any
  adaptive: bool = False

  @property
  def allows_empty_draft(self) -> bool:
    """True if the first token may be below the threshold."""
    return self.adaptive

  def _split(self, params: PyTree) -> tuple[PyTree, Float[Array, ''] | None]:
    """Returns the parameters of the model and the threshold."""
    return params if self.adaptive else (params, None)

  def init(self, params, cache_length):
    """Returns an empty cache."""
    return self.model.init_cache(self._split(params)[0], cache_length)

  def read(self, params, state, tokens, position):
    """Returns the cache after reading tokens."""
    model_params, _ = self._split(params)
    # The logits are unused, so XLA does not compute them.
    _, cache = read(self.model, model_params, state, tokens, position=position)
    return cache

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts until all drafts of the batch are full or have stopped."""
    params, threshold = self._split(params)
    draft, state = draft_tokens(
      self.model,
      params,
      state,
      context,
      gamma=gamma,
      drafts=drafts,
      reads_last_two=drafts == 1,
      threshold=threshold,
    )
    return draft, state, context.verifier_cache

  def rollback(self, state, position, draft_index, length, *, gamma, drafts):
    """Moves the slots of the accepted draft to the front."""
    if drafts > 1 and gamma:
      slots = position + jnp.arange(gamma + 1) * drafts + draft_index
      state = self.model.move(state, position, slots)
    return self.model.rewind(state, length)

  def resize(self, params, state, cache_length):
    """Returns the cache with room for `cache_length` tokens."""
    return self.model.resize(self._split(params)[0], state, cache_length)
