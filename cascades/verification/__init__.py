"""Which drafted tokens stay, and the token after them.

Of one draft per block (`single`):

  token       From the left, keep a draft with the method's acceptance; at the
              first that is not kept, sample the residual (Leviathan et al.
              2023, Chen et al. 2023; Narasimhan et al. 2025 for any target).
  block       Look at the block as a whole: the same law, at least as many
              drafts kept (Sun et al., ICLR 2025, arXiv 2403.10444).
  sequential  Nothing is read ahead: a cascade that goes on token by token.

Of one draft or several (`several`), each with the same law:

  multi_round One candidate after the other, each against what the last
              rejection left of the target (SpecInfer, arXiv 2305.09781).
  k_seq       All candidates against the target divided by one number
              (SpecTr, NeurIPS 2023, arXiv 2310.15141).
  match       Draw from the target, and go on along the drafts that have the
              token. At temperature 0 the longest accepted draft stays; the
              drafts may come from anywhere, a beam search included.
  traversal   From the leaves of the tree, the longest path that may stay; of
              one draft it is `block` (arXiv 2505.12398). Its module is its own.

These are entries of the registry `VERIFICATIONS`; plug-ins add others.

If all drafts stay, one more token, the bonus, is sampled from the method's law,
or from the verifier if `VerificationConfig.bonus` says so.

Distributions are made of logits where they are looked at, and only as many at
a time as fit into `MAX_PROBS_AT_ONCE` numbers: at Gemma's vocabulary no
array of the block's size is made but the two models' logits; `traversal`
alone keeps the targets along a path.
"""

from cascades.verification.inputs import VerificationInputs
from cascades.verification.verdict import Verdict
from cascades.verification.verify import verify
from cascades.verification_config import (
  MULTI_DRAFT,
  SEQUENTIAL,
  STANDARD,
  VERIFICATIONS,
  VerificationConfig,
)

__all__ = [
  'MULTI_DRAFT',
  'SEQUENTIAL',
  'STANDARD',
  'VERIFICATIONS',
  'Verdict',
  'VerificationConfig',
  'VerificationInputs',
  'verify',
]
