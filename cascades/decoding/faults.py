"""Finds distributions that are not finite, so that a call can end in an error.

A model whose weights hold a nan, or whose activations overflow, gives logits
that are no distribution. Nothing that is drawn from them means anything: the
row stops, and the caller raises an error that names the model and the position.
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
  """The first distribution of a sequence that is not finite.

  Attributes:
    culprit: Index into `CULPRITS`; 0 for no fault.
    position: Index in the sequence, prompt included, of the token that the
      distribution is of.
  """

  culprit: Int[Array, ''] | int
  position: Int[Array, ''] | int

  @property
  def is_fault(self) -> Bool[Array, '']:
    """True if there is one."""
    return self.culprit > 0


class FaultError(ValueError):
  """A call ended because a distribution is not finite.

  Attributes:
    culprit: One of `CULPRITS`.
    location: The position and the sequence, in words.
  """

  def __init__(self, culprit: str, location: str):
    # Both are the error's arguments, so that another process can raise it too.
    super().__init__(culprit, location)
    self.culprit, self.location = culprit, location

  def __str__(self) -> str:
    if self.culprit == 'method':
      return (
        f'method: what it samples from is no distribution {self.location};'
        ' check it with cascades.audit.'
      )
    return (
      f'{self.culprit}: its logits are not finite {self.location}; check its'
      ' weights for nan, or load it with another dtype.'
    )


def check(fault: Fault, sequence: str) -> None:
  """Refuses a sequence with a fault.

  Args:
    fault: Of the sequence, fetched.
    sequence: Names it in the error, such as 'prompt 3'.

  Raises:
    FaultError: There is one.
  """
  if fault.culprit:
    location = f'at position {int(fault.position)} of {sequence}'
    raise FaultError(CULPRITS[int(fault.culprit)], location)


def no_fault() -> Fault:
  """The value of a sequence whose distributions were all finite."""
  zero = jnp.zeros((), jnp.int32)
  return Fault(zero, zero)


def earlier(first: Fault, second: Fault) -> Fault:
  """`first` if it is a fault, else `second`."""
  return jax.tree.map(
    lambda x, y: jnp.where(first.is_fault, x, y), first, second
  )


def locate(
  state: SamplingState,
  verifier_bad: Bool[Array, 'n'],
  drafter_bad: Bool[Array, 'n'],
  method_bad: Bool[Array, 'n'],
  emitted: Int[Array, ''],
) -> Fault:
  """Finds the first fault among the tokens that a block emits.

  At one position the verifier is named before the drafter, which may read its
  states, and the method, which looks at both, last. What lies after a rejection
  or after the end of the sequence is of no token, and no fault.

  Args:
    state: Before the block.
    verifier_bad: Where the verifier's logits are no distribution.
    drafter_bad: Where the drafter's are not.
    method_bad: Where what the method draws from is not.
    emitted: Tokens that the block emits; 0 for a finished sequence.
  """
  bad = jnp.stack([verifier_bad, drafter_bad, method_bad])
  bad &= jnp.arange(bad.shape[1]) < emitted
  at = jnp.argmax(bad.any(0)).astype(jnp.int32)
  culprit = jnp.where(bad.any(), jnp.argmax(bad[:, at]) + 1, 0)
  return Fault(culprit.astype(jnp.int32), state.length + at)


def truncate(
  draft: Draft, reads_bonus_row: Bool[Array, '']
) -> tuple[Draft, Bool[Array, 'gamma_1']]:
  """Ends drafts before the first token whose logits are no distribution.

  The verifier alone decides the token there, so that the law holds whatever the
  drafter gives.

  Args:
    draft: K drafts.
    reads_bonus_row: Whether the logits after a draft's last token are read.

  Returns:
    The drafts, and at which of their positions one was ended.
  """
  size = draft.tokens.shape[1] + 1
  if draft.logits is None:
    # Its tokens were chosen, not drawn.
    return draft, jnp.zeros(size, bool)
  index = jnp.arange(size)[:, None]
  is_bonus = (index == draft.lengths) & draft.has_bonus_probs
  is_bad = ~processing.is_distribution(draft.logits)
  # A row that nobody asks for is no fault, but is not read either.
  bad = is_bad & ((index < draft.lengths) | (is_bonus & reads_bonus_row))
  return end_before_undefined(draft, ~is_bad.T), bad.any(-1)
