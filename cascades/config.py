"""The options of decoding: one frozen value, declared and checked once.

  DecodingConfig(method='token_v3', lenience=0.3, gamma=8)

Every option of the core is declared here with its type, default, range and
help. The options of one kind of drafter are declared on its class: see
`drafters`.
"""

import dataclasses
from typing import Any

from cascades import arguments
from cascades.arguments import Declared, option
from cascades.verification_config import (
  BONUSES,
  GATES,
  MULTI_DRAFT,
  VerificationConfig,
)


def _method(method: Any) -> Any:
  # Imports JAX, which flags and help do not wait for.
  from cascades import methods

  expected = 'a name or a cascades.Method'
  arguments.instance('method', method, str | methods.Method, expected)
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
    'Method: which drafted tokens are accepted; a name in METHODS.',
    check=_method,
  )
  lenience: float | None = option(
    None,
    'Threshold of the method, from strict (lossless) to drafter-only; None'
    " is the method's strict value.",
  )
  gamma: int = option(
    4, 'Tokens drafted per block; 0 decodes with the verifier alone.', low=0
  )
  temperature: float = option(
    1.0,
    'Sampling temperature of both models; 0 is greedy.',
    low=0,
    high=1e6,
  )
  top_k: int | None = option(
    None,
    'Keeps the k most probable tokens of both models; None keeps all.',
    low=1,
    # A number above the size of the vocabulary keeps all tokens.
    high=2**64,
  )
  top_p: float | None = option(
    None,
    'Keeps the most probable tokens that hold this mass; None keeps all.',
    low=0,
    high=1,
  )
  cache_length: int = option(
    4096, 'Most tokens of a sequence, prompt included.', low=1
  )
  batch_size: int = option(
    64, 'Most rows decoded at a time; a row is a prompt at a lenience.', low=1
  )
  verification: str = option(
    'token',
    'Verification of a block: token, block, look_ahead; of several'
    ' drafts: multi_round, k_seq, match, traversal.',
  )
  gate: str = option(
    'raw',
    'Probabilities that deferral rules read: at temperature 1 (raw), or'
    ' after temperature and truncation (processed).',
    choices=GATES,
  )
  bonus: str = option(
    'target',
    "Distribution of the token after a fully accepted block: the method's"
    ' law (target) or p (verifier).',
    choices=BONUSES,
  )
  draft: str = option(
    'sample',
    'Drafts: drawn from q (sample), or the most probable tokens (argmax).',
    choices=('sample', 'argmax'),
  )
  drafts: int = option(1, 'Drafts per block, side by side.', low=1)
  tree_size: int | None = option(
    None,
    'Most drafted tokens that the verifier reads per block; None reads'
    ' all. Drafts with a common prefix share it.',
    low=1,
    applies='several drafts',
  )

  def __post_init__(self) -> None:
    # Imports JAX, which flags and help do not wait for.
    from cascades import verification  # noqa: F401

    super().__post_init__()
    config = self.verification_config
    # Raises if the name is unknown, or its number is wrong.
    window = config.window or 0
    if self.drafts > 1 and not config.kind.any_drafts:
      raise ValueError(
        f'verification: {self.verification!r} verifies one draft per block, got'
        f' drafts {self.drafts}; take {", ".join(MULTI_DRAFT)}, or 1 draft.'
      )
    if config.kind.window and self.method.name == 'undecided':
      raise ValueError(
        "method: undecided is not the gate of FLy; take 'vllm_fly', or 'token'."
      )
    if self.tree_size is not None:
      arguments.integer('tree_size', self.tree_size, self.drafts)
    if 0 < self.gamma < window:
      raise ValueError(
        f'verification: {self.verification!r} looks at {window} drafts,'
        f' but gamma is {self.gamma}; raise gamma to {window}, or give a'
        ' smaller number.'
      )

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
