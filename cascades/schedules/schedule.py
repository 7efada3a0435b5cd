"""The interface of schedules, and their leniences along a draft."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import methods

# State that a schedule carries from token to token.
ScheduleState = PyTree


class TokenCost(NamedTuple):
  """The cost of a token that was drawn from a method's law.

  Attributes:
    divergence: TV(law, p) at the token's position, in [0, 1]; independent of
      the token.
    mismatch: True if the law makes the token likelier than the verifier does.
  """

  divergence: Float[Array, '']
  mismatch: Bool[Array, '']


@runtime_checkable
class ScheduleBase(Protocol):
  """The lenience of a method along an answer; a pytree of traced numbers.

  Attributes:
    needs_costs: True if `update` needs the costs of tokens; then the law is
      computed at every position of a draft, before any draft is verified.
  """

  needs_costs: bool = False

  def start(
    self, tokens: Int[Array, 'T'], length: Int[Array, '']
  ) -> ScheduleState:
    """Computes the state after a prompt, the first `length` tokens."""
    raise NotImplementedError

  def lenience(
    self, state: ScheduleState, requested: Float[Array, ''], strict: float
  ) -> Float[Array, '']:
    """Computes the lenience of the next token."""
    raise NotImplementedError

  def update(
    self, state: ScheduleState, token: Int[Array, ''], cost: TokenCost | None
  ) -> ScheduleState:
    """Computes the state after another token."""
    raise NotImplementedError

  def refusal(
    self, max_new_tokens: int, forbidden_ids: Collection[int]
  ) -> str | None:
    """Explains why the schedule does not fit an answer; None if it fits."""
    return None


def token_cost(
  method: methods.Method,
  d: methods.Distributions,
  lenience: Float[Array, ''],
  token: Int[Array, ''],
) -> TokenCost:
  """Computes the cost of a token at one position and lenience."""
  law = method.law(d, lenience)
  return TokenCost(methods.total_variation(law, d.p), law[token] > d.p[token])


def leniences_along_draft(
  schedule: Any,
  state: ScheduleState,
  requested: Float[Array, ''],
  method: methods.Method,
  draft: Int[Array, 'n'],
  distributions_at: Callable[[Array], methods.Distributions],
) -> tuple[Float[Array, 'n_1'], ScheduleState]:
  """Computes the lenience and the schedule's state along a draft."""

  def step(state, inputs):
    i, token = inputs
    lenience = schedule.lenience(state, requested, method.strict)
    cost = None
    if schedule.needs_costs:
      cost = token_cost(method, distributions_at(i), lenience, token)
    return schedule.update(state, token, cost), (lenience, state)

  last_state, (leniences, states) = jax.lax.scan(
    step, state, (jnp.arange(len(draft)), draft)
  )
  last = schedule.lenience(last_state, requested, method.strict)
  return jnp.append(leniences, last), jax.tree.map(
    lambda x, y: jnp.concatenate([x, y[None]]), states, last_state
  )
