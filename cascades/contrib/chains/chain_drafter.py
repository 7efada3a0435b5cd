"""A drafter that is drafted for: cascades of three models and more.

The middle model and a smaller drafter decode as they would alone, by a method
of their own (CS-Drafting's vertical cascade, Chen et al. 2023, arXiv
2312.11462). What they emit follows a declared law, given what was written; so
that law is the q of the outer verification, and the outer law is kept.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from cascades import decoding, drafters, methods, verification
from cascades.decoding.drafter import State


@dataclasses.dataclass(frozen=True)
class ChainDrafter(drafters.Drafter):
  """A model drafts, and a drafter drafts for it.

  Its parameters are (middle model's, drafter's, lenience).

  Attributes:
    model: The middle model, which verifies here.
    drafter: Drafts for it; any that needs no hidden state.
    method: Decides which drafts the inner pair keeps.
    gamma: Tokens per inner block.
    verification_config: How the inner pair verifies. Every token must follow
      the law, so the bonus must be the target's.
  """

  model: Any
  drafter: drafters.Drafter
  method: methods.Method
  gamma: int
  verification_config: verification.VerificationConfig = verification.STANDARD
  max_drafts = 1

  def __post_init__(self):
    self.verification_config.check(self.method)
    if self.gamma < 1:
      raise ValueError(f'gamma: {self.gamma} will not do; give 1 or more.')
    keeps_law = (
      self.verification_config.bonus == 'target'
      and self.verification_config.kind.keeps_law
    )
    if not keeps_law or self.drafter.needs_hidden:
      raise ValueError(
        'drafter: within a chain every token must follow the law, and nothing'
        " is told of hidden states; take bonus='target', verification 'token'"
        " or 'block', and another drafter."
      )

  @property
  def _inner(self) -> decoding.StepConfig:
    models = decoding.Models(self.model, self.drafter)
    return decoding.StepConfig(
      models, self.method, self.gamma, self.verification_config
    )

  @property
  def cache_headroom(self) -> int:
    """Positions that the last inner block may take past the drafts."""
    return self._inner.cache_headroom + 1

  def init(self, params, cache_length):
    """Both caches, empty."""
    middle, small, _ = params
    return (
      self.model.init_cache(middle, cache_length),
      self.drafter.init(small, cache_length),
    )

  def read(self, params, state, tokens, position):
    """Both models read."""
    middle, small, _ = params
    return (
      decoding.read(self.model, middle, state[0], tokens, position)[1],
      self.drafter.read(small, state[1], tokens, position),
    )

  def propose(self, params, state, context, *, gamma, drafts):
    """Runs the inner loop until every row has gamma + 1 tokens.

    The last of them is not drafted; its law is that of the bonus token.
    """
    middle, small, lenience = params
    size = gamma + 1 + self.gamma + 1
    rows = jnp.zeros((size, self.model.vocab_size), jnp.float32)
    inner = decoding.SamplingState(
      tokens=context.tokens,
      length=context.length,
      done=jnp.zeros((), bool),
      blocks=jnp.zeros((), jnp.int32),
      verifier_cache=state[0],
      drafter_state=state[1],
      schedule_state=(),
      hidden=None,
      key=context.key,
      lenience=lenience,
      schedule=None,
      prompt_length=context.length,
      limit=context.length + gamma + 1,
    )
    never = jnp.full((1,), -1, jnp.int32)

    def body(carry):
      before, rows, _ = carry
      inner, info = decoding.step(
        before,
        decoding.Params(middle, small),
        context.sampling,
        never,
        step_config=self._inner,
        with_law=True,
      )
      # A row that has enough writes past its end, and looks at nothing of it.
      at = jnp.minimum(before.length - context.length, gamma + 1)
      # A fault of either model is one of what they draft together.
      position = before.length + jnp.arange(len(info.law))
      is_bad = info.fault.is_fault & (position >= info.fault.position)
      law = jnp.where(is_bad[:, None], jnp.nan, jnp.log(info.law))
      rows = jax.lax.dynamic_update_slice(rows, law, (at, 0))
      anyone = jax.lax.pmax(~inner.done, decoding.ROWS)
      return inner, rows, anyone

    inner, rows, _ = jax.lax.while_loop(
      lambda carry: carry[2], body, (inner, rows, jnp.ones((), bool))
    )
    drafted = jax.lax.dynamic_slice(inner.tokens, (context.length,), (gamma,))
    # Calls are those of the middle model, one a block, which cost the most.
    draft = decoding.full_length_draft(
      drafted[None], rows[: gamma + 1, None], inner.blocks
    )
    return (
      draft,
      (inner.verifier_cache, inner.drafter_state),
      context.verifier_cache,
    )

  def rollback(self, state, position, draft_index, length, *, gamma, drafts):
    """Both models forget what did not stay."""
    middle, small = state
    return (
      self.model.rewind(middle, length),
      self.drafter.rollback(
        small, position, draft_index, length, gamma=self.gamma, drafts=1
      ),
    )

  def resize(self, params, state: State, cache_length):
    """Both caches with another room."""
    middle, small, _ = params
    return (
      self.model.resize(middle, state[0], cache_length),
      self.drafter.resize(small, state[1], cache_length),
    )

  def processed_probs(self, logits, sampling):
    """Rows are logarithms of the law, which temperature is already in."""
    return jnp.exp(logits)


def chain(
  model: Any,
  params: Any,
  inner: drafters.BoundDrafter,
  method: methods.Method,
  lenience: float,
  gamma: int,
) -> drafters.BoundDrafter:
  """A model and what drafts for it, as a drafter of a larger one.

  Args:
    model: The middle model.
    params: Its parameters.
    inner: Drafts for it.
    method: Decides what `model` keeps of what `inner` drafted.
    lenience: How readily it keeps that.
    gamma: Tokens per block of the two.
  """
  drafter = ChainDrafter(model, inner.drafter, method, gamma)
  return drafters.BoundDrafter(
    drafter, (params, inner.params, jnp.float32(lenience))
  )
