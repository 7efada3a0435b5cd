"""Operations on the rows of a batch between two runs of the loop.

`prefill` reads prompts, `refill_rows` puts them into free rows, `extend` reads
the next prompt of a conversation, `resize_caches` changes the room of caches.
Each is compiled once per shapes and static arguments. Operations that change
rows in place donate their buffers.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding import reading
from cascades.decoding.block_stats import empty_statistics
from cascades.decoding.drafter import Drafter
from cascades.decoding.faults import Fault
from cascades.decoding.state import Models, Params, Row, write


class Prompts(NamedTuple):
  """Prompts of a batch, or one of them under `vmap`, padded on the right.

  A row ends at its limit, a length that includes the prompt.
  """

  tokens: Int[Array | np.ndarray, '*B P']
  lengths: Int[Array | np.ndarray, '*B']
  keys: jax.Array
  limits: Int[Array | np.ndarray, '*B']


def _read_prompt(
  state: Row,
  prompt: Int[Array, 'P'],
  prompt_length: Int[Array, ''],
  limit: Int[Array, ''],
  *,
  params: Params,
  models: Models,
  is_new: bool,
) -> Row:
  """Reads the next prompt of a sequence with both models, in one pass each."""
  verifier, drafter = models
  at = state.length - 1
  # The padding on its right is hidden as the caches are rewound.
  block = jnp.concatenate([state.tokens[at][None], prompt])
  _, hidden, cache = reading.read_hidden(
    verifier,
    params.verifier,
    state.verifier_cache,
    block,
    position=at,
    hidden_layers=drafter.hidden_layers,
  )
  drafter_state = state.drafter_state
  # A block as long as the buffer begins a sequence too: no token precedes it.
  if is_new or len(block) == len(state.tokens):
    drafter_state = drafter.read(params.drafter, drafter_state, block, at)
  else:
    drafter_state = _catch_up(state, params, block, drafter)
  length = state.length + prompt_length
  drafter_state = drafter.rollback(
    drafter_state, at, jnp.zeros((), jnp.int32), length - 1, gamma=0, drafts=1
  )
  drafter_state = drafter.observe(
    params.drafter,
    drafter_state,
    tokens=prompt,
    hidden=hidden[:-1],
    position=at,
    count=prompt_length,
  )
  last_hidden = state.hidden
  if last_hidden is not None:
    # No state predicted the only token of a sequence: its own state is used.
    is_known = (prompt_length > 0) | (state.length == 1)
    new_hidden = hidden[jnp.maximum(prompt_length - 1, 0)]
    last_hidden = jnp.where(is_known, new_hidden, last_hidden)
  return state.replace(
    tokens=write(state.tokens, state.length, prompt),
    source=write(state.source, state.length, jnp.zeros_like(prompt)),
    length=length,
    prompt_length=length,
    limit=limit,
    done=length >= limit,
    blocks=jnp.zeros((), jnp.int32),
    verifier_cache=verifier.rewind(cache, length - 1),
    drafter_state=drafter_state,
    hidden=last_hidden,
    cumulative_counts=state.cumulative_counts.at[length - 1].set(0),
  )


def _catch_up(
  state: Row, params: Params, block: Int[Array, 'L'], drafter: Drafter
) -> PyTree:
  """Reads a block, and again the token before it, which a drafter may lack."""
  at = state.length - 1
  start = jnp.maximum(at - 1, 0)
  tokens = jnp.append(state.tokens[start], block)
  # For a sequence of one token, the additional token is overwritten later.
  tokens = jnp.where(at > 0, tokens, jnp.append(block, 0))
  drafter_state = drafter.rollback(
    state.drafter_state, start, jnp.zeros_like(at), start, gamma=0, drafts=1
  )
  return drafter.read(params.drafter, drafter_state, tokens, start)


@functools.partial(
  jax.jit,
  static_argnames=('models', 'cache_length', 'logits_length', 'with_logprobs'),
)
def prefill(
  params: Params,
  prompts: Prompts,
  *,
  models: Models,
  cache_length: int,
  logits_length: int = 0,
  with_logprobs: bool = False,
) -> Row:
  """Reads prompts with both models, in one pass each.

  Compiled once per shapes and static arguments, whatever the method and gamma.

  Args:
    params: Both models' parameters.
    prompts: The prompts, [B, ...].
    models: The verifier and the drafter.
    cache_length: Slots of a row's caches, at least P. A row stops when its next
      block would not fit: call `resize_caches`, or give slots for its limit and
      `StepConfig.cache_headroom`.
    logits_length: New tokens whose float32 logits are recorded: at least the
      largest number of new tokens + gamma + 1, or 0 to record no logits.
    with_logprobs: True to record each token's `Row.law_logprobs`.

  Returns:
    The rows, [B, ...], ready for `decode` at lenience 0.
  """
  verifier, drafter = models

  def start(prompt, params):
    length, zero = jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32)
    logits = hidden = None
    if logits_length:
      logits = jnp.zeros((logits_length, verifier.vocab_size), jnp.float32)
    if drafter.needs_hidden:
      hidden = jnp.zeros(
        verifier.hidden_size(params.verifier, drafter.hidden_layers),
        verifier.dtype(params.verifier),
      )
    tokens = jnp.zeros((cache_length,), jnp.int32).at[0].set(prompt.tokens[0])
    # A sequence of one token, which no model has read.
    state = Row(
      tokens=tokens,
      length=length,
      done=jnp.ones((), bool),
      blocks=zero,
      verifier_cache=verifier.init_cache(params.verifier, cache_length),
      drafter_state=drafter.init(params.drafter, cache_length),
      hidden=hidden,
      key=prompt.keys,
      lenience=jnp.zeros(()),
      prompt_length=length,
      limit=length,
      logits=logits,
      law_logprobs=jnp.zeros((cache_length, 3)) if with_logprobs else None,
      fault=Fault(zero, zero),
      **empty_statistics(cache_length),
    )
    return _read_prompt(
      state,
      jnp.asarray(prompt.tokens[1:]),
      jnp.asarray(prompt.lengths - 1),
      jnp.asarray(prompt.limits),
      params=params,
      models=models,
      is_new=True,
    )

  return jax.vmap(start, (0, None))(prompts, params)


@functools.partial(jax.jit, static_argnames='models', donate_argnames='rows')
def extend(
  rows: Row,
  params: Params,
  prompts: Int[Array, 'B P'],
  prompt_lengths: Int[Array, 'B'],
  limits: Int[Array, 'B'],
  *,
  models: Models,
) -> Row:
  """Continues each row with another prompt; its caches are reused."""
  read_prompt = functools.partial(
    _read_prompt, params=params, models=models, is_new=False
  )
  return jax.vmap(read_prompt)(rows, prompts, prompt_lengths, limits)


@jax.jit
def gather_rows[RowsT](rows: RowsT, indices: Int[Array, 'N']) -> RowsT:
  """Returns the rows at some indices, of any pytree of rows."""
  # Indices are in range; other modes would check this for each leaf.
  return jax.tree.map(lambda x: x.at[indices].get(mode='clip'), rows)


@functools.partial(jax.jit, donate_argnames='rows')
def refill_rows(
  rows: Row,
  prompts: Row,
  slots: Int[Array, 'B'],
  sources: Int[Array, 'B'],
  leniences: Float[Array, 'B'],
  count: Int[Array, ''],
) -> Row:
  """Puts prompts that were read into free rows.

  Args:
    rows: [B, ...]; their buffers are donated.
    prompts: Rows from `prefill`, with the same room.
    slots: Indices of the rows to fill.
    sources: Index in `prompts` for each of them.
    leniences: The lenience of each of them.
    count: Valid slots; the rest is padding.
  """

  def refill(i, rows):
    # Slices, since a gather and a scatter of each leaf compile slowly.
    row = jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, sources[i], keepdims=False),
      prompts,
    )
    row = row.replace(lenience=leniences[i])
    return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, slots[i], 0),
      rows,
      row,
    )

  return jax.lax.fori_loop(0, count, refill, rows)


@functools.partial(jax.jit, static_argnames=('models', 'cache_length'))
def resize_caches(
  rows: Row,
  params: Params,
  *,
  models: Models,
  cache_length: int,
) -> Row:
  """Returns the rows with room for `cache_length` tokens."""

  def resize(state, params):
    names = 'tokens', 'law_logprobs', *empty_statistics(0)
    buffers = {name: getattr(state, name) for name in names}
    return state.replace(
      **{
        name: write(jnp.zeros((cache_length, *x.shape[1:]), x.dtype), 0, x)
        for name, x in buffers.items()
        if x is not None
      },
      verifier_cache=models.verifier.resize(
        params.verifier, state.verifier_cache, cache_length
      ),
      drafter_state=models.drafter.resize(
        params.drafter, state.drafter_state, cache_length
      ),
    )

  return jax.vmap(resize, (0, None))(rows, params)
