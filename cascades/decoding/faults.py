"""Finds distributions that are not finite, so that a call can end in an error.

A model whose weights hold a nan, or whose activations overflow, gives logits
that are no distribution. Nothing that is drawn from them means anything: the
row stops, and the caller raises an error that names the model and the position.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cascades.decoding.drafter import Draft
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
  def found(self) -> Bool[Array, '']:
    """Whether there is one."""
    return self.culprit > 0


class FaultError(ValueError):
  """A call ended because a distribution is not finite.

  Attributes:
    culprit: One of `CULPRITS`.
    where: The position and the sequence, in words.
  """

  def __init__(self, culprit: str, where: str):
    self.culprit, self.where = culprit, where
    wrong = 'its logits are not finite'
    advice = 'check its weights for nan and for the dtype they are kept in'
    if culprit == 'method':
      wrong = 'what it samples from is no distribution'
      advice = 'check it with cascades.audit'
    super().__init__(f'{culprit}: {wrong} {where}; {advice}.')


def check(fault: Fault, sequence: str) -> None:
  """Refuses a sequence with a fault.

  Args:
    fault: Of the sequence, fetched.
    sequence: Names it in the error, such as 'prompt 3'.

  Raises:
    FaultError: There is one.
  """
  if fault.culprit:
    where = f'at position {int(fault.position)} of {sequence}'
    raise FaultError(CULPRITS[int(fault.culprit)], where)


def no_fault() -> Fault:
  """The value of a sequence whose distributions were all finite."""
  zero = jnp.zeros((), jnp.int32)
  return Fault(zero, zero)


def earlier(first: Fault, second: Fault) -> Fault:
  """`first` if it is a fault, else `second`."""
  return jax.tree.map(lambda x, y: jnp.where(first.found, x, y), first, second)


def locate(
  state: SamplingState,
  verifier: Bool[Array, 'n'],
  drafter: Bool[Array, 'n'],
  method: Bool[Array, 'n'],
) -> Fault:
  """Finds the first fault of a block.

  At one position the verifier is named before the drafter, which may read its
  states, and the method, which looks at both, last.

  Args:
    state: Before the block; a finished row has no fault.
    verifier: Where the verifier's logits are no distribution.
    drafter: Where the drafter's are not.
    method: Where what the method draws from is not.
  """
  bad = jnp.stack([verifier, drafter, method]) & ~state.done
  at = jnp.argmax(bad.any(0)).astype(jnp.int32)
  culprit = jnp.where(bad.any(), jnp.argmax(bad[:, at]) + 1, 0)
  return Fault(culprit.astype(jnp.int32), state.length + at)


def cut(
  draft: Draft, needs_bonus_probs: Bool[Array, '']
) -> tuple[Draft, Bool[Array, 'gamma_1']]:
  """Ends drafts before the first token whose logits are no distribution.

  So the verifier writes there, and the law holds whatever the drafter gives.

  Args:
    draft: K drafts.
    needs_bonus_probs: Whether the row after a full-length draft is looked at.

  Returns:
    The drafts, and at which of their positions one was cut.
  """
  size = draft.tokens.shape[1] + 1
  if draft.logits is None:
    # Its tokens were chosen, not drawn.
    return draft, jnp.zeros(size, bool)
  index = jnp.arange(size)[:, None]
  has_row = draft.known & ((draft.count < size - 1) | needs_bonus_probs)
  looked_at = (index < draft.count) | ((index == draft.count) & has_row)
  bad = looked_at & ~processing.is_distribution(draft.logits)
  count = jnp.where(bad, index, draft.count).min(0)
  known = draft.known & ~bad.any(0)
  return draft._replace(count=count, known=known), bad.any(-1)
