"""What a schedule is, and how it goes along a draft."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods

Memory = PyTree


class Spent(NamedTuple):
  """What a token cost that followed a method's law.

  Attributes:
    divergence: TV(law, p) where it was written, in [0, 1]; whatever it is.
    mismatch: Whether the law makes it likelier than the verifier does.
  """

  divergence: Float[Array, '']
  mismatch: Bool[Array, '']


@runtime_checkable
class Schedule(Protocol):
  """How lenient a method is, along an answer. A pytree of traced numbers.

  Attributes:
    looks: Whether it wants to know what tokens cost; then the law is made of
      every place of a draft, before any is judged.
  """

  looks: bool = False

  def start(self, tokens: Int[Array, 'T'], length: Int[Array, '']) -> Memory:
    """What is to be remembered of a prompt, its first `length` tokens."""

  def lenience(
    self, memory: Memory, asked: Float[Array, ''], strict: float
  ) -> Float[Array, '']:
    """The lenience of the next token.

    Args:
      memory: Of all tokens before it.
      asked: The lenience that was asked for.
      strict: The method's, at which its law is exactly p.
    """

  def after(
    self, memory: Memory, token: Int[Array, ''], spent: Spent | None
  ) -> Memory:
    """The memory after another token; what it cost, if the schedule looks."""

  def refusal(self, new: int, forbidden: Collection[int]) -> str | None:
    """Why an answer cannot be bent so, in a few words; None if it can.

    Args:
      new: Most tokens of the answer.
      forbidden: Ids that it must not have.
    """
    return None


def spent(
  method: methods.Method,
  d: methods.Distributions,
  lenience: Float[Array, ''],
  token: Int[Array, ''],
) -> Spent:
  """What a token costs at a place where a method is so lenient."""
  law = method.law(d, lenience)
  return Spent(methods.total_variation(law, d.p), law[token] > d.p[token])


def along(
  schedule: Any,
  memory: Memory,
  asked: Float[Array, ''],
  method: methods.Method,
  draft: Int[Array, 'n'],
  row: Callable[[Array], methods.Distributions],
) -> tuple[Float[Array, 'n_1'], Memory]:
  """Leniences along a draft, and the memory before each place of it.

  Args:
    schedule: A `Schedule`.
    memory: Before the first token.
    asked: The lenience that was asked for.
    method: Which is so lenient.
    draft: Its tokens.
    row: The distributions after i of them.

  Returns:
    [n + 1] leniences, and a memory whose leaves begin with n + 1: of each token
    and of the one after them.
  """

  def one(memory, inputs):
    i, token = inputs
    lenience = schedule.lenience(memory, asked, method.strict)
    cost = spent(method, row(i), lenience, token) if schedule.looks else None
    return schedule.after(memory, token, cost), (lenience, memory)

  end, (leniences, before) = jax.lax.scan(
    one, memory, (jnp.arange(len(draft)), draft)
  )
  last = schedule.lenience(end, asked, method.strict)
  return jnp.append(leniences, last), jax.tree.map(
    lambda x, y: jnp.concatenate([x, y[None]]), before, end
  )
