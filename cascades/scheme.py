"""How blocks are verified, and where their tokens come from; without JAX."""

import dataclasses
from typing import Any

from cascades import arguments

# Where a token comes from; each is the index of its name.
SOURCES = ('prompt', 'draft', 'residual', 'bonus')
PROMPT, DRAFT, RESIDUAL, BONUS = range(4)

# Of one draft per block; of any number; and a cascade without blocks.
SINGLE = ('token', 'block')
SEVERAL = ('multi_round', 'k_seq', 'match', 'traversal')
SEQUENTIAL = 'sequential'
AHEAD = 'look_ahead'
VERIFICATIONS = (*SINGLE, AHEAD, SEQUENTIAL, *SEVERAL)
GATES = ('raw', 'processed')
BONUSES = ('target', 'verifier')


# Of leniences: the schedule by which they stay as they are.
CONSTANT = 'constant'
# Of methods: that they may make any token likelier.
NO_CAP = 'none'
# Drafts of a window that looks ahead, the one that is judged among them.
_WINDOW = 4


@dataclasses.dataclass(frozen=True)
class Scheme:
  """How blocks are verified; recorded with every result.

  Attributes:
    verification: One of `VERIFICATIONS`: how the package `verification` looks
      at a block, or 'sequential' for a cascade that makes no blocks.
      'look_ahead' may have the drafts of its window, 2 or more, as in
      'look_ahead:6'; otherwise they are 4.
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
      known = isinstance(value, str) and value in values
      if not known and not (name == 'verification' and self.window):
        raise ValueError(
          f'{name}: {arguments.shown(value)} is not known; there are'
          f' {", ".join(values)}.'
        )

  @property
  def window(self) -> int | None:
    """Drafts that are looked at for one that is judged leniently, itself too.

    None where each is judged by itself.
    """
    if not isinstance(self.verification, str):
      return None
    kind, _, drafts = self.verification.partition(':')
    if kind != AHEAD:
      return None
    window = arguments.count_in(drafts) if drafts else _WINDOW
    return window if window and window > 1 else None

  def check(self, method: Any, drafts: int = 1) -> None:
    """Refuses a method that cannot be verified this way.

    Args:
      method: A `methods.Method`.
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
    if self.verification == SEQUENTIAL and method.rule is None:
      raise ValueError(
        f"verification: 'sequential' follows a deferral rule, and"
        f" {method.name} has none; take 'token' or 'block'."
      )
    if drafts > 1 and self.verification not in SEVERAL:
      raise ValueError(
        f'verification: {self.verification!r} looks at one draft, and there are'
        f' {drafts}; take {", ".join(SEVERAL)}, or 1 draft.'
      )


STANDARD = Scheme()
