"""Methods that are no cascades: both models alone, and what cannot be done."""

import math

VERIFIER, DRAFTER = 'verifier_only', 'drafter_only'
BASELINES = (VERIFIER, DRAFTER)
# The verification of a cascade that does not speculate: it has no blocks.
SEQUENTIAL = 'sequential'
# Rules that look at the drafter alone, and can be followed without a verifier.
_OF_DRAFTER = ('chow',)


def strict_lenience(method: str) -> float:
  """Where a method emits what the verifier would; nan where it never does.

  Args:
    method: Its name, which need not be known here.
  """
  # It takes JAX, which not every page needs.
  from cascades.methods import METHODS
  from cascades.registries import split

  # Behind a colon stands which of a kind, such as a rule that was learnt.
  known = METHODS.get(split(method)[0], None)
  return math.nan if known is None or known.strict is None else known.strict


def is_oracle(method: str, verification: str) -> bool:
  """Whether its rule needs the verifier where its cost is not counted.

  A sequential cascade calls the verifier where it takes over; a rule that
  looks at the verifier elsewhere shows what it could do if that were free.
  """
  return verification == SEQUENTIAL and method not in _OF_DRAFTER
