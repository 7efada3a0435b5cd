"""Verifies a block: accepts drafted tokens, and samples the token after them.

`docs/methods.md` has a line and the paper of each: of one draft per block
`token`, `block` and `look_ahead`; of one or several `multi_round`, `k_seq`,
`match` and `traversal`.

After a fully accepted draft one more token, the bonus, is sampled from the
method's law, or from the verifier with bonus='verifier'.

Distributions are computed from logits when they are needed, and only as many
at a time as fit into `MAX_PROBS_AT_ONCE` numbers: at Gemma's vocabulary the two
models' logits are the only arrays of the block's size; `traversal` alone also
stores the targets along a path. Sizes in shapes: K drafts of gamma tokens,
gamma_1 = gamma + 1, n uniform numbers that sample one token.
"""

import functools

import jax
import jax.numpy as jnp

from cascades.methods import processing
from cascades.verification import multi_draft, single_draft
from cascades.verification.inputs import Verdict, VerificationInputs
from cascades.verification.traversal import traversal
from cascades.verification_config import (
  MULTI_DRAFT,
  STANDARD,
  VERIFICATIONS,
  Verification,
  VerificationConfig,
)

__all__ = (
  'MULTI_DRAFT STANDARD VERIFICATIONS Verdict Verification VerificationConfig'
  ' VerificationInputs verify'
).split()

_of_drafts = functools.partial(Verification, any_drafts=True)
for _name, _entry in {
  'token': Verification(decide=single_draft.token),
  'block': Verification(decide=single_draft.block),
  'multi_round': _of_drafts(decide=multi_draft.walk),
  'k_seq': _of_drafts(decide=multi_draft.walk),
  'match': _of_drafts(decide=multi_draft.walk, draws_tokens=True),
  'traversal': _of_drafts(decide=traversal),
  'look_ahead': Verification(
    decide=single_draft.look_ahead, keeps_law=False, window=4
  ),
}.items():
  VERIFICATIONS.register(_name, _entry, builtin=True)


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
    options = {} if config.window is None else {'window': config.window}
    verdict = config.kind.decide(
      inputs, accept_uniforms, sample_uniforms, **options
    )
  if inputs.with_probs:
    verdict = single_draft.report(inputs, verdict)
  drafts = jnp.append(inputs.tokens[verdict.draft_index], -1)
  if num_drafts > 1:
    # Each draft may have been examined where none was accepted.
    is_accepted = jnp.arange(gamma + 1) < verdict.num_accepted
    drafts = jnp.where(is_accepted, drafts, -1)
  uniforms = verdict.accept_uniforms
  if uniforms is None:
    uniforms = jnp.full(gamma + 1, jnp.nan)
  return verdict._replace(drafts=drafts, accept_uniforms=uniforms)
