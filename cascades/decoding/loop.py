"""The loop: blocks, until there is something else to do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from cascades.decoding.block_stats import Row, count, record
from cascades.decoding.drafter import ROWS
from cascades.decoding.state import Params
from cascades.decoding.step import StepConfig, step
from cascades.methods import processing
from cascades.verification_config import DRAFT


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
  """Decodes rows, each at its lenience, until there is something else to do.

  That is when so few rows are left, after so many blocks, or when a row needs
  more room. Compiled once per shapes and step_config: prompts, keys, leniences,
  temperature and limits are traced.

  Args:
    rows: [B, ...], their memory is taken.
    params: Both models' parameters.
    sampling: Temperature, truncation and forbidden tokens, for both models.
    stop_tokens: Ids that end a row; they are emitted.
    active_threshold: Stops when this many rows or fewer are active.
    max_blocks: Stop after so many blocks.
    step_config: What is compiled.

  Returns:
    The rows, and the number of blocks that the loop made.
  """

  def one_block(row, params, sampling, stop_tokens):
    after, info = step(
      *(row, params, sampling, stop_tokens),
      step_config=step_config,
      with_logits=row.logits is not None,
    )
    return record(row, after, info)

  every = jax.vmap(one_block, (0, None, None, None), axis_name=ROWS)
  room = rows.tokens.shape[-1]

  def goes_on(carry):
    rows, blocks = carry
    # A finished row is still written to, past its end.
    fits = rows.length + step_config.cache_headroom <= room
    return (
      ((~rows.done).sum() > active_threshold)
      & fits.all()
      & (blocks < max_blocks)
    )

  def body(carry):
    rows, blocks = carry
    return every(rows, params, sampling, stop_tokens), blocks + 1

  return jax.lax.while_loop(goes_on, body, (rows, jnp.zeros((), jnp.int32)))


def summarize_counts(row: Row, step_config: StepConfig) -> dict[str, int]:
  """How an answer came about, in numbers.

  Args:
    row: A row that was fetched, [].
    step_config: What decoded it.

  Returns:
    `Counts` by name; blocks are calls of the verifier here.
  """
  counts = {name: int(n) for name, n in count(row)._asdict().items()}
  blocks, read, drafter_calls = (
    counts.pop(name) for name in ('blocks', 'verifier_tokens', 'drafter_calls')
  )
  counts |= dict(
    verifier_calls=blocks, verifier_tokens=read, drafter_calls=drafter_calls
  )
  if step_config.sequential:
    # The verifier is called where the rule defers, and where the drafter has
    # nothing to say. It reads there what was written up to then.
    new = slice(int(row.prompt_length), int(row.length))
    (written,) = np.nonzero(np.asarray(row.source[new]) != DRAFT)
    counts |= dict(
      verifier_calls=len(written),
      verifier_tokens=int(written[-1]) + 1 if len(written) else 0,
    )
  return counts
