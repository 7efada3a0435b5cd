"""Three models by name: a middle one that drafts, and what drafts for it.

'MIDDLE+SMALL' is a model and a drafter of its own, each as `pairing` knows it:
'tiny-drafter+ngram', 'self:6+tiny-drafter'. The two decode by a method of their
own; see `chain`. With a fuzzy gate for both methods that is PyramidSD (arXiv
2510.12966), which was not compared with its authors' code (unverified).
"""

import dataclasses
import pathlib
from typing import Any

from cascades import arguments, methods

_AND = '+'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
  """How the middle model and what drafts for it decode.

  Attributes:
    method: Decides which drafts the middle model keeps.
    lenience: How readily; None for the method's strict one.
    gamma: Tokens per block of the two.

  Raises:
    ValueError: One will not do; says which.
  """

  method: str | methods.Method = 'speed'
  lenience: float | None = None
  gamma: int = 2

  def __post_init__(self):
    method = methods.get_method(self.method, 'inner_method')
    lenience = self.lenience
    if lenience is None:
      lenience = method.strict
    if lenience is None:
      raise ValueError(
        f'inner_lenience: {method.name} is nowhere strict; give one.'
      )
    checked = dict(
      method=method,
      lenience=arguments.number(
        'inner_lenience', lenience, -float('inf'), float('inf')
      ),
      gamma=arguments.whole('inner_gamma', self.gamma, 1),
    )
    for name, value in checked.items():
      # Frozen for everyone else.
      object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A middle model, and what drafts for it, as `pairing` loads them."""

  middle: Any
  small: Any


def parts(name: str) -> tuple[str, str] | None:
  """The names of the two; None of what is no such name, or a file.

  Raises:
    ValueError: The name is longer than those of files.
  """
  arguments.file_name('drafter', name)
  middle, plus, small = name.partition(_AND)
  if not plus or not middle or not small or pathlib.Path(name).exists():
    return None
  return middle, small
