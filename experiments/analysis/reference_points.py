"""Both models alone, strict leniences, and oracles.

A point of a sweep is judged against these: the verifier alone and the drafter
alone are the baselines, a strict lenience emits what the verifier would, and an
oracle is a bound that no method reaches.
"""

from experiments.records.metrics import SEQUENTIAL

VERIFIER, DRAFTER = 'verifier_only', 'drafter_only'
BASELINES = (VERIFIER, DRAFTER)
# Rules that read only the drafter, and that need no verifier call to decide.
_DRAFTER_RULES = ('chow',)


def is_strict(method: str, lenience: float) -> bool:
  """Tells if the law of a setting is the verifier's.

  False for a method that is not registered here. A method without lenience has
  the lenience nan.
  """
  # The import loads JAX, which not every page needs.
  from cascades.methods import METHODS

  registered = METHODS.get(method, None)
  return method == VERIFIER or (
    registered is not None and registered.is_strict(lenience)
  )


def is_oracle(method: str, verification: str) -> bool:
  """Tells if a rule reads the verifier at tokens where no call is counted.

  A sequential cascade calls the verifier only where the verifier takes over. A
  rule that reads the verifier at every token shows what the cascade could reach
  if these calls were free.
  """
  return verification == SEQUENTIAL and method not in _DRAFTER_RULES
