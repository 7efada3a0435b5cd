"""Decoding without a drafter."""

import dataclasses

import jax.numpy as jnp

from cascades.decoding.drafter import Drafter, full_length_draft


@dataclasses.dataclass(frozen=True)
class NoDrafter(Drafter):
  """Drafts nothing: with gamma = 0, plain decoding with the verifier."""

  def propose(self, params, state, context, *, gamma, drafts):
    """Returns drafts without a token; q is undefined after them."""
    draft = full_length_draft(jnp.zeros((drafts, 0), jnp.int32), None, 0)
    draft = draft._replace(has_bonus_probs=jnp.zeros(drafts, bool))
    return draft, state, context.verifier_cache
