"""A drafter that has a drafter: cascades of three models and more.

An outer model verifies the drafts of an inner drafter by a method of their own
(CS-Drafting's vertical cascade, Chen et al. 2023, arXiv 2312.11462). The tokens
that the two emit follow that method's law, given the text before. That law is q
when the verifier verifies these tokens, so the verifier's method keeps its law.
It is all that is known of the chain: the gate 'raw' reads it too, so that at
temperature 0 a rule that compares with the largest q never defers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cascades import decoding, drafters, methods, verification
from cascades.decoding.drafter import State


@dataclasses.dataclass(frozen=True)
class ChainDrafter(drafters.Drafter):
  """An outer model that drafts, with an inner drafter.

  The parameters are (the outer model's, the inner drafter's, lenience).

  Attributes:
    model: The outer model, the verifier of the inner pair.
    drafter: The inner drafter; must not need hidden states.
    method: Method that decides which inner drafts are accepted.
    gamma: Tokens per inner block.
    verification_config: Verification of the inner pair. Every token must follow
      the law of the method, so the bonus token must be drawn from the target.
  """

  model: Any
  drafter: drafters.Drafter
  method: methods.Method
  gamma: int
  verification_config: verification.VerificationConfig = verification.STANDARD
  max_drafts = 1

  def __post_init__(self):
    verification_config = self.verification_config
    verification_config.check(self.method)
    if self.gamma < 1:
      raise ValueError(f'gamma: must be 1 or more, got {self.gamma}.')
    keeps_law = verification_config.kind.keeps_law
    keeps_law &= verification_config.bonus == 'target'
    if not keeps_law or self.drafter.needs_hidden:
      raise ValueError(
        "drafter: a chained drafter must have bonus 'target', verification"
        " 'token' or 'block', and an inner drafter without hidden states,"
        f' got {type(self.drafter).__name__} with {verification_config}.'
      )

  @property
  def _step_config(self) -> decoding.StepConfig:
    models = decoding.Models(self.model, self.drafter)
    return decoding.StepConfig(
      models, self.method, self.gamma, self.verification_config
    )

  @property
  def cache_headroom(self) -> int:
    """Cache slots that the last inner block may write past the drafts."""
    return self._step_config.cache_headroom + 1

  def init(self, params, cache_length):
    """Returns the empty states of the outer model and the inner drafter."""
    outer, inner, _ = params
    return (
      self.model.init_cache(outer, cache_length),
      self.drafter.init(inner, cache_length),
    )

  def read(self, params, state, tokens, position):
    """Reads tokens into both caches."""
    outer, inner, _ = params
    outer_cache, inner_state = state
    _, outer_cache = decoding.read(
      self.model, outer, outer_cache, tokens, position=position
    )
    return outer_cache, self.drafter.read(inner, inner_state, tokens, position)

  def propose(self, params, state, context, *, gamma, drafts):
    """Runs the inner loop until every row of the batch has gamma + 1 tokens.

    The last of these tokens is not drafted; its law is q of the bonus token.
    """
    outer, inner, lenience = params
    logprobs = jnp.zeros(
      (gamma + 1 + self.gamma + 1, self.model.vocab_size), jnp.float32
    )
    start = decoding.SamplingState(
      tokens=context.tokens,
      length=context.length,
      done=jnp.zeros((), bool),
      blocks=jnp.zeros((), jnp.int32),
      verifier_cache=state[0],
      drafter_state=state[1],
      hidden=None,
      key=context.key,
      lenience=lenience,
      prompt_length=context.length,
      limit=context.length + gamma + 1,
    )
    no_stop_token = jnp.full((1,), -1, jnp.int32)

    def decode_block(carry):
      state, logprobs, _ = carry
      next_state, info = decoding.step(
        state,
        decoding.Params(outer, inner),
        context.sampling,
        no_stop_token,
        step_config=self._step_config,
        with_law=True,
      )
      assert info.law is not None
      # A finished row writes past its end, where nothing is read.
      offset = jnp.minimum(state.length - context.length, gamma + 1)
      # A fault of either model is a fault of the chained drafter.
      position = state.length + jnp.arange(len(info.law))
      is_bad = info.fault.is_fault & (position >= info.fault.position)
      law = jnp.where(is_bad[:, None], jnp.nan, jnp.log(info.law))
      logprobs = jax.lax.dynamic_update_slice(logprobs, law, (offset, 0))
      any_active = jax.lax.pmax(~next_state.done, decoding.ROWS)
      return next_state, logprobs, any_active

    carry = start, logprobs, jnp.ones((), bool)
    end, logprobs, _ = jax.lax.while_loop(
      lambda carry: carry[2], decode_block, carry
    )
    tokens = jax.lax.dynamic_slice(end.tokens, (context.length,), (gamma,))
    # Calls are those of the outer model, one per block, which cost the most.
    draft = decoding.full_length_draft(
      tokens[None], logprobs[: gamma + 1, None], end.blocks
    )
    state = end.verifier_cache, end.drafter_state
    return draft, state, context.verifier_cache

  def rollback(self, state, position, draft_index, length, *, gamma, drafts):
    """Rolls both caches back."""
    outer_cache, inner_state = state
    return (
      self.model.rewind(outer_cache, length),
      self.drafter.rollback(
        inner_state, position, draft_index, length, gamma=self.gamma, drafts=1
      ),
    )

  def resize(self, params, state: State, cache_length):
    """Returns both caches with room for `cache_length` tokens."""
    outer, inner, _ = params
    return (
      self.model.resize(outer, state[0], cache_length),
      self.drafter.resize(inner, state[1], cache_length),
    )

  def processed_probs(self, logits, sampling):
    """Returns q = exp(logits): the logits are the law's log-probabilities."""
    return jnp.exp(logits)


def chain(
  model: Any,
  params: PyTree,
  inner: drafters.BoundDrafter,
  *,
  method: methods.Method,
  lenience: float,
  gamma: int,
) -> drafters.BoundDrafter:
  """Makes a drafter of a model and the model's own drafter."""
  drafter = ChainDrafter(model, inner.drafter, method, gamma)
  return drafters.BoundDrafter(
    drafter, (params, inner.params, jnp.float32(lenience))
  )
