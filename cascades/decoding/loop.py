"""The compiled loop: decodes blocks of all rows of a batch."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cascades.decoding.block_stats import record
from cascades.decoding.drafter import ROWS
from cascades.decoding.state import Params, Row
from cascades.decoding.step import step
from cascades.decoding.step_config import StepConfig
from cascades.methods import processing


@functools.partial(
  jax.jit, static_argnames='step_config', donate_argnames='rows'
)
def decode(
  rows: Row,
  params: Params,
  sampling: processing.SamplingParams,
  stop_tokens: Int[Array, 'K'],
  active_threshold: Int[Array, ''] | int = 0,
  max_blocks: Int[Array, ''] | int = 2**30,
  *,
  step_config: StepConfig,
) -> tuple[Row, Int[Array, '']]:
  """Decodes rows, each at its lenience, until the caller has work to do.

  Stops when few rows are active, after a number of blocks, or when a row needs
  longer caches. Compiled once per shapes and step_config: prompts, keys,
  leniences, temperature and limits are traced.

  Args:
    rows: [B, ...]; their buffers are donated.
    params: Both models' parameters.
    sampling: Temperature, truncation and forbidden tokens, for both models.
    stop_tokens: Token ids that end a row; they are emitted.
    active_threshold: Stops when this many rows or fewer are active.
    max_blocks: Stops after this many blocks.
    step_config: The static configuration of the step.

  Returns:
    The rows, and the number of blocks that the loop decoded.
  """

  def decode_block(row, params, sampling, stop_tokens):
    after, block = step(
      row, params, sampling, stop_tokens, step_config=step_config
    )
    return record(row, after, block)

  decode_blocks = jax.vmap(decode_block, (0, None, None, None), axis_name=ROWS)
  room = rows.tokens.shape[-1]

  def continues(carry):
    rows, blocks = carry
    # A finished row is still written to, past its end.
    fits = rows.length + step_config.cache_headroom <= room
    is_busy = (~rows.done).sum() > active_threshold
    return is_busy & fits.all() & (blocks < max_blocks)

  def body(carry):
    rows, blocks = carry
    return decode_blocks(rows, params, sampling, stop_tokens), blocks + 1

  return jax.lax.while_loop(continues, body, (rows, jnp.zeros((), jnp.int32)))
