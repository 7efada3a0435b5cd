"""Logits and targets that are no distribution end a call in an error.

A model with a nan among its weights, or with overflowing activations, returns
logits that are no distribution. Tokens drawn from them are meaningless: the row
stops, and the caller raises an error that names the model and the position.
"""

from typing import NamedTuple

from jaxtyping import Array, Int

# `Fault.culprit` is an index into these names.
CULPRITS = ('', 'verifier', 'drafter', 'method')


class Fault(NamedTuple):
  """The first distribution that is not finite; of culprit 0, none."""

  culprit: Int[Array, ''] | int
  position: Int[Array, ''] | int


class FaultError(ValueError):
  """A call ended because a distribution is not finite."""

  def __init__(self, culprit: str, location: str):
    # Both are the error's arguments, so that another process can raise it too.
    super().__init__(culprit, location)
    self.culprit, self.location = culprit, location

  def __str__(self) -> str:
    if self.culprit == 'method':
      return (
        f'method: its target is not a distribution {self.location}; check the'
        ' method with cascades.audit.'
      )
    return (
      f'{self.culprit}: its logits are not finite {self.location}; check its'
      ' weights for nan, or load it with another dtype.'
    )


def check(fault: Fault, sequence: str) -> None:
  """Raises an error for a sequence with a fault."""
  if fault.culprit:
    location = f'at position {int(fault.position)} of {sequence}'
    raise FaultError(CULPRITS[int(fault.culprit)], location)
