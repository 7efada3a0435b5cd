"""Verifies a block: accepts drafted tokens, and samples the token after them.

One draft per block (`single_draft`):

  token       Accepts drafts from the left by the method's acceptance; at the
              first rejection, samples the residual (Leviathan et al. 2023, Chen
              et al. 2023; Narasimhan et al. 2025 for any target).
  block       Decides the block as a whole: the same law, at least as many
              accepted drafts (Sun et al., ICLR 2025, arXiv 2403.10444).
  look_ahead  Also accepts a draft that only the lenient method accepts, if
              strict decoding accepts the next ones (`look_ahead`).

One draft or several (`multi_draft`), each with the same law:

  multi_round Examines one candidate after the other, each against the residual
              of the last rejection (SpecInfer, arXiv 2305.09781).
  k_seq       Examines all candidates against the target divided by one number
              (SpecTr, NeurIPS 2023, arXiv 2310.15141).
  match       Draws from the target, and follows the drafts that have the token.
              At temperature 0 the longest accepted draft is kept; drafts need
              not be draws from q, and may come from a beam search.
  traversal   Accepts the longest path of the tree from its leaves (`traversal`,
              arXiv 2505.12398); with one draft it is `block`.

After a fully accepted draft one more token, the bonus, is sampled from the
method's law, or from the verifier with bonus='verifier'.

Distributions are computed from logits when they are needed, and only as many
at a time as fit into `MAX_PROBS_AT_ONCE` numbers: at Gemma's vocabulary the two
models' logits are the only arrays of the block's size; `traversal` alone also
stores the targets along a path. Sizes in shapes: K drafts of gamma tokens,
gamma_1 = gamma + 1, n uniform numbers that sample one token.
"""

from cascades.verification import multi_draft, single_draft
from cascades.verification.look_ahead import look_ahead
from cascades.verification.traversal import traversal
from cascades.verification.verdict import Verdict
from cascades.verification.verification_inputs import VerificationInputs
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

_drafts = dict(any_drafts=True, single_target=True)
for _name, _entry in {
  'token': Verification(decide=single_draft.token),
  'block': Verification(decide=single_draft.block, single_target=True),
  'multi_round': Verification(decide=multi_draft.multi_round, **_drafts),
  'k_seq': Verification(decide=multi_draft.k_seq, **_drafts),
  'match': Verification(decide=multi_draft.match, draws_tokens=True, **_drafts),
  'traversal': Verification(decide=traversal, **_drafts),
  'look_ahead': Verification(
    decide=look_ahead, keeps_law=False, window=4, shortest='look_ahead:2'
  ),
}.items():
  VERIFICATIONS.register(_name, _entry, builtin=True)
