"""The spec of prompt look-up: 'ngram' or 'ngram:3'."""

import dataclasses
from typing import TYPE_CHECKING

from cascades import arguments
from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  from cascades.decoding import BoundDrafter
  from cascades.models.checkpoints import Checkpoint

# Each compared token adds code to compile.
MAX_WINDOW = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramSpec(drafter_spec.Spec):
  """Prompt look-up, the drafter that repeats continuations of the text."""

  window: int | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.window is not None:
      window = arguments.integer('window', self.window, 1, MAX_WINDOW)
      object.__setattr__(self, 'window', window)

  @classmethod
  def parse(cls, name: str) -> 'NgramSpec':
    """Returns the spec of 'ngram' or 'ngram:3'."""
    if name == 'ngram':
      return cls()
    window = drafter_spec.parse_argument(name, 'tokens')
    if window > MAX_WINDOW:
      raise ValueError(
        f'drafter: {name!r} must compare at most {MAX_WINDOW} tokens; write'
        f" 'ngram:{MAX_WINDOW}' or less."
      )
    return cls(window=window)

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds prompt look-up, which fits every verifier."""
    from cascades.decoding import BoundDrafter
    from cascades.drafters.ngram import NgramDrafter

    if self.window is None:
      return BoundDrafter(NgramDrafter(), ())
    return BoundDrafter(NgramDrafter(self.window, self.window), ())
