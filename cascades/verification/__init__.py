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

from cascades.verification import multi_draft, single_draft
from cascades.verification.inputs import Verdict, VerificationInputs
from cascades.verification.look_ahead import look_ahead
from cascades.verification.traversal import traversal
from cascades.verification.verify import verify
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

_of_drafts = functools.partial(
  Verification, any_drafts=True, single_target=True
)
for _name, _entry in {
  'token': Verification(decide=single_draft.token),
  'block': Verification(decide=single_draft.block, single_target=True),
  'multi_round': _of_drafts(decide=multi_draft.multi_round),
  'k_seq': _of_drafts(decide=multi_draft.k_seq),
  'match': _of_drafts(decide=multi_draft.match, draws_tokens=True),
  'traversal': _of_drafts(decide=traversal),
  'look_ahead': Verification(
    decide=look_ahead, keeps_law=False, window=4, shortest='look_ahead:2'
  ),
}.items():
  VERIFICATIONS.register(_name, _entry, builtin=True)
