"""How blocks are verified, and what verification says."""

import dataclasses
from typing import NamedTuple

from jaxtyping import Array, Bool, Int

from cascades import methods

# Where an emitted token comes from; indices into `records.SOURCES`.
PROMPT, DRAFT, RESIDUAL, BONUS = range(4)

# Of one draft per block; of any number.
SINGLE = ('token', 'block', 'sequential')
SEVERAL = ('multi_round', 'k_seq', 'match')
VERIFICATIONS = (*SINGLE, *SEVERAL)
GATES = ('raw', 'processed')
BONUSES = ('target', 'verifier')


@dataclasses.dataclass(frozen=True)
class Scheme:
  """How blocks are verified; recorded with every result.

  Attributes:
    verification: One of `VERIFICATIONS`; see the package.
    gate: What deferral rules see: 'raw' probabilities, at temperature 1 and
      untruncated, or the 'processed' ones that tokens are drawn from.
    bonus: What the bonus token is drawn from: the 'target', which is the
      method's law, or the 'verifier', as some implementations do. Then the
      token after a whole block does not follow the method's law.

  Raises:
    ValueError: No such option; names the ones there are.
  """

  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'

  def __post_init__(self):
    for name, values in (
      ('verification', VERIFICATIONS),
      ('gate', GATES),
      ('bonus', BONUSES),
    ):
      value = getattr(self, name)
      if not isinstance(value, str) or value not in values:
        raise ValueError(
          f'{name}: {value!r} is not known; there are {", ".join(values)}.'
        )

  def check(self, method: methods.Method, drafts: int = 1) -> None:
    """Refuses a method that cannot be verified this way.

    Args:
      method: Which one.
      drafts: How many there are in a block.

    Raises:
      ValueError: It has no single target, or no deferral rule; or there are
        more drafts than the scheme looks at.
    """
    several = (*SEVERAL, 'block')
    if self.verification in several and not method.single_target:
      raise ValueError(
        f'verification: {method.name} verifies each token against a target of'
        f" its own, and {self.verification!r} needs a single one; take 'token'."
      )
    if self.verification == 'sequential' and method.rule is None:
      raise ValueError(
        f"verification: 'sequential' follows a deferral rule, and"
        f" {method.name} has none; take 'token' or 'block'."
      )
    if drafts > 1 and self.verification in SINGLE:
      raise ValueError(
        f'verification: {self.verification!r} looks at one draft, and there are'
        f' {drafts}; take {", ".join(SEVERAL)}, or 1 draft.'
      )


STANDARD = Scheme()


class Verdict(NamedTuple):
  """What verification says of one block of gamma drafted tokens.

  Attributes:
    num_accepted: How many drafts stay, 0 to gamma.
    next_token: The token after them.
    next_source: Where it comes from: RESIDUAL after a rejection, BONUS where
      nothing more was drafted; DRAFT in a sequential cascade that did not
      defer.
    deferred: [gamma + 1], where the rule defers the drafted token.
    path: Of several drafts, one that begins with the tokens that stay.
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  next_source: Int[Array, '']
  deferred: Bool[Array, 'gamma_1']
  path: Int[Array, '']
