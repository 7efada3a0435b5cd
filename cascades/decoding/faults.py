"""Finds logits and targets that are no distribution, to end a call in an error.

A model with a nan among its weights, or with overflowing activations, returns
logits that are no distribution. Tokens drawn from them are meaningless: the row
stops, and the caller raises an error that names the model and the position.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades.decoding.drafter import Draft, end_before_undefined
from cascades.decoding.state import SamplingState
from cascades.methods import processing

# `Fault.culprit` is an index into these names.
CULPRITS = ('', 'verifier', 'drafter', 'method')


class Fault(NamedTuple):
  """The first distribution of a sequence that is not finite."""

  culprit: Int[Array, ''] | int
  position: Int[Array, ''] | int

  @property
  def is_fault(self) -> Bool[Array, ''] | bool:
    """True if a distribution is not finite."""
    return self.culprit > 0


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


def no_fault() -> Fault:
  """Returns the fault of a sequence whose distributions are all finite."""
  zero = jnp.zeros((), jnp.int32)
  return Fault(zero, zero)


def first_fault(first: Fault, second: Fault) -> Fault:
  """Returns `first` if it is a fault, else `second`."""
  return jax.tree.map(
    lambda x, y: jnp.where(first.is_fault, x, y), first, second
  )


def culprits(
  verifier_bad: Bool[Array, 'n'],
  drafter_bad: Bool[Array, 'n'],
  method_bad: Bool[Array, 'n'],
) -> Int[Array, 'n']:
  """Returns whom to blame at each position, an index into `CULPRITS`.

  The verifier comes first, then the drafter, which may read the verifier's
  states, then the method, which depends on both.
  """
  blamed = jnp.where(drafter_bad, 2, jnp.where(method_bad, 3, 0))
  return jnp.where(verifier_bad, 1, blamed).astype(jnp.int32)


def locate(
  state: SamplingState, blamed: Int[Array, 'n'], emitted: Int[Array, '']
) -> Fault:
  """Finds the first fault among the tokens that a block emits."""
  blamed = jnp.where(jnp.arange(len(blamed)) < emitted, blamed, 0)
  at = jnp.argmax(blamed > 0).astype(jnp.int32)
  return Fault(blamed[at], state.length + at)


def end_at_faults(
  draft: Draft, reads_bonus_logits: Bool[Array, '']
) -> tuple[Draft, Bool[Array, 'gamma_1']]:
  """Ends drafts before the first token whose logits are no distribution.

  The verifier alone decides the token there, so that the law holds whatever
  the drafter returns.
  """
  size = draft.tokens.shape[1] + 1
  if draft.logits is None:
    # Each q is one-hot.
    return draft, jnp.zeros(size, bool)
  index = jnp.arange(size)[:, None]
  is_bonus = (index == draft.lengths) & draft.has_bonus_probs
  is_bad = ~processing.is_distribution(draft.logits)
  # Unread logits are no fault, but end the draft too.
  is_read = (index < draft.lengths) | (is_bonus & reads_bonus_logits)
  ended = is_bad & is_read
  return end_before_undefined(draft, ~is_bad.T), ended.any(-1)
