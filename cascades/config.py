"""The options of decoding: one frozen value, declared and checked once.

  DecodingConfig(method='token_v3', lenience=0.3, gamma=8)

Every option of the core is declared here with its type, default, range and
help. The options of one kind of drafter are declared on its spec: see
`drafters`.
"""

import dataclasses
from typing import Any

from cascades import arguments
from cascades.declarations import Declared, option
from cascades.verification_config import BONUSES, GATES, VerificationConfig


def _method(method: Any) -> Any:
  # Imports JAX, which flags and help do not wait for.
  from cascades import methods

  types = str | methods.Method
  arguments.instance('method', method, types, 'a name or a cascades.Method')
  return methods.get_method(method)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig(Declared):
  """The options of decoding, whatever the models; `help` describes each.

  Attributes:
    method: Given as a `Method`, a name in `METHODS` or an alias of the paper's
      notebook; kept as a `Method`.

  Raises:
    ValueError: An option is out of its range, or two cannot be combined; one
      sentence says which.
  """

  method: Any = option(
    'token_v3',
    kind=str,
    check=_method,
    help='Method: which drafted tokens are accepted; a name in METHODS.',
  )
  lenience: float | None = option(
    None,
    kind=float,
    help='Threshold of the method, from strict (lossless) to drafter-only; None'
    " is the method's strict value.",
  )
  gamma: int = option(
    4,
    kind=int,
    low=0,
    help='Tokens drafted per block; 0 decodes with the verifier alone.',
  )
  temperature: float = option(
    1.0,
    kind=float,
    low=0,
    high=1e6,
    help='Sampling temperature of both models; 0 is greedy.',
  )
  top_k: int | None = option(
    None,
    kind=int,
    low=1,
    # A number above the size of the vocabulary keeps all tokens.
    high=2**64,
    help='Keeps the k most probable tokens of both models; None keeps all.',
  )
  top_p: float | None = option(
    None,
    kind=float,
    low=0,
    high=1,
    help='Keeps the most probable tokens that hold this mass; None keeps all.',
  )
  cache_length: int = option(
    4096,
    kind=int,
    low=1,
    help='Most tokens of a sequence, prompt included.',
  )
  batch_size: int = option(
    64,
    kind=int,
    low=1,
    help='Most rows decoded at a time; a row is a prompt at a lenience.',
  )
  verification: str = option(
    'token',
    kind=str,
    help='Verification of a block: token, block, look_ahead; of several'
    ' drafts: multi_round, k_seq, match, traversal.',
  )
  gate: str = option(
    'raw',
    kind=str,
    choices=GATES,
    help='Probabilities that deferral rules read: at temperature 1 (raw), or'
    ' after temperature and truncation (processed).',
  )
  bonus: str = option(
    'target',
    kind=str,
    choices=BONUSES,
    help="Distribution of the token after a fully accepted block: the method's"
    ' law (target) or p (verifier).',
  )
  drafts: int = option(
    1, kind=int, low=1, help='Drafts per block, side by side.'
  )
  tree_size: int | None = option(
    None,
    kind=int,
    low=1,
    applies='several drafts',
    help='Most drafted tokens that the verifier reads per block; None reads'
    ' all. Drafts with a common prefix share it.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    config = self.verification_config
    config.check(self.method, self.drafts)
    if self.tree_size is not None:
      arguments.integer('tree_size', self.tree_size, self.drafts)
    refuse = config.kind.refuse
    if (
      self.gamma and refuse and (reason := refuse(config.argument, self.gamma))
    ):
      raise ValueError(f'verification: {self.verification!r} {reason}.')

  @property
  def effective_lenience(self) -> float:
    """The lenience, else the method's strict one; 0 if none is read."""
    if self.gamma and self.method.has_lenience:
      return self.method.or_strict(self.lenience)
    return self.lenience or self.method.strict or 0.0

  @property
  def is_lossless(self) -> bool:
    """True if the law of answers is the verifier's, whatever drafts."""
    return not self.gamma or self.method.is_strict(self.effective_lenience)

  @property
  def verification_config(self) -> VerificationConfig:
    """The kind of verification, its gate and its bonus."""
    return VerificationConfig(self.verification, self.gate, self.bonus)

  def to_dict(self) -> dict[str, Any]:
    """Returns every option by name, with values that JSON can hold."""
    return super().to_dict() | {'method': self.method.name}
