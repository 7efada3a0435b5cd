"""Steps 4 and 5: ends a sequence where it must end, and commits the block."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from cascades.decoding.state import Params, SamplingState, write
from cascades.decoding.step_config import StepConfig
from cascades.decoding.verify_block import BlockResult


class Emission(NamedTuple):
  """The number of tokens by which a sequence advances, and if it ends."""

  num_tokens: Int[Array, '']
  ends_sequence: Bool[Array, '']


def find_emission(
  state: SamplingState,
  tokens: Int[Array, 'gamma_1'],
  num_accepted: Int[Array, ''],
  stop_tokens: Int[Array, 'K'],
) -> Emission:
  """Finds how many tokens of a block are emitted.

  A sequence ends at the first stop token or at its limit, also inside a block.
  """
  index = jnp.arange(len(tokens))
  is_stop = (tokens[:, None] == stop_tokens).any(-1) & (index <= num_accepted)
  stopped = is_stop.any()
  emitted = jnp.where(stopped, jnp.argmax(is_stop), num_accepted) + 1
  emitted = jnp.minimum(emitted, state.limit - state.length)
  emitted = jnp.where(state.done, 0, emitted)
  ended = (is_stop & (index < emitted)).any()
  return Emission(emitted, ended | (state.length + emitted >= state.limit))


def commit[S: SamplingState](
  state: S,
  params: Params,
  drafter_state: PyTree,
  result: BlockResult,
  *,
  emission: Emission,
  step_config: StepConfig,
) -> S:
  """Writes a block's tokens, and rolls both caches back to length - 1."""
  verifier, drafter = step_config.models
  emitted = emission.num_tokens
  at, length = state.length - 1, state.length + emitted
  last_hidden = state.hidden
  if last_hidden is not None:
    new_hidden = result.hidden[jnp.maximum(emitted - 1, 0)]
    last_hidden = jnp.where(state.done, last_hidden, new_hidden)
  drafter_state = drafter.rollback(
    drafter_state,
    at,
    result.verdict.draft_index,
    length - 1,
    gamma=step_config.gamma,
    drafts=step_config.drafts,
  )
  drafter_state = drafter.observe(
    params.drafter,
    drafter_state,
    tokens=result.tokens,
    hidden=result.hidden,
    position=at,
    count=emitted,
  )
  return state.replace(
    tokens=write(state.tokens, state.length, result.tokens),
    length=length,
    blocks=state.blocks + ~state.done,
    verifier_cache=verifier.rewind(result.verifier_cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
    done=state.done | emission.ends_sequence,
  )
