"""Verifies a block by the kind of verification that its config names."""

import jax
import jax.numpy as jnp

from cascades.methods import processing
from cascades.verification import single_draft
from cascades.verification.inputs import Verdict, VerificationInputs


def verify(inputs: VerificationInputs, key: jax.Array) -> Verdict:
  """Verifies one block of drafted tokens."""
  config, (num_drafts, gamma) = inputs.config, inputs.tokens.shape
  size = processing.uniforms_per_token(inputs.vocab_size)
  per_position = size if config.kind.draws_tokens else num_drafts
  # One draw for all numbers of a block: those of the last token come last.
  uniforms = processing.draw_uniforms(key, gamma * per_position + size)
  accept_uniforms, sample_uniforms = jnp.split(uniforms, [gamma * per_position])
  if not gamma or inputs.empty_draft:
    verdict = single_draft.bonus_only(inputs, sample_uniforms)
  else:
    verdict = config.decide(inputs, accept_uniforms, sample_uniforms)
  drafts = jnp.append(inputs.tokens[verdict.draft_index], -1)
  if num_drafts > 1:
    # Each draft may have been examined where none was accepted.
    is_accepted = jnp.arange(gamma + 1) < verdict.num_accepted
    drafts = jnp.where(is_accepted, drafts, -1)
  uniforms = verdict.accept_uniforms
  if uniforms is None:
    uniforms = jnp.full(gamma + 1, jnp.nan)
  return verdict._replace(drafts=drafts, accept_uniforms=uniforms)
