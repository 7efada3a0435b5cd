"""The rows of a batch, between two loops.

`prefill` prompts, `place` them in rows that are free, `extend` a row by another
turn, `resize` the caches. Each is compiled once per shapes and static
arguments; those that change rows where they lie take their memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding import reading
from cascades.decoding.block_stats import Row, per_token
from cascades.decoding.drafter import Drafter
from cascades.decoding.faults import no_fault
from cascades.decoding.state import Models, Params, write


def _extend(
  state: Row,
  prompt: Int[Array, 'P'],
  prompt_length: Int[Array, ''],
  limit: Int[Array, ''],
  params: Params,
  *,
  models: Models,
  fresh: bool,
) -> Row:
  """One sequence and its next prompt, which both models read in one pass.

  They read [last, prompt]. Padding on the right is read too; rewinding the
  caches to the sequence's length hides it. `fresh` is a sequence of one token.
  """
  verifier, drafter = models
  at = state.length - 1
  block = jnp.concatenate([state.tokens[at][None], prompt])
  _, hidden, cache = reading.read_hidden(
    *(verifier, params.verifier, state.verifier_cache, block, at),
    hidden_layers=drafter.hidden_layers,
  )
  drafter_state = state.drafter_state
  # A block that takes all the room there is follows no token either.
  if fresh or len(block) == len(state.tokens):
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
  kept_hidden = state.hidden
  if kept_hidden is not None:
    # A sequence of one token has no state where that was said: its own.
    said = hidden[jnp.maximum(prompt_length - 1, 0)]
    kept_hidden = jnp.where((prompt_length > 0) | (at == 0), said, kept_hidden)
  tokens = write(state.tokens, state.length, prompt)
  return state.replace(
    tokens=tokens,
    source=write(state.source, state.length, jnp.zeros_like(prompt)),
    length=length,
    prompt_length=length,
    limit=limit,
    done=length >= limit,
    blocks=jnp.zeros((), jnp.int32),
    memory=_remembered(state.schedule, tokens, length),
    verifier_cache=verifier.rewind(cache, length - 1),
    drafter_state=drafter_state,
    hidden=kept_hidden,
    cumulative_counts=state.cumulative_counts.at[length - 1].set(0),
  )


def _catch_up(
  state: Row, params: Params, block: Int[Array, 'L'], drafter: Drafter
) -> PyTree:
  """A drafter's state after a block that begins with the last token.

  After a whole draft it may lack the token before that, and reads it too.
  """
  at = state.length - 1
  first = jnp.maximum(at - 1, 0)
  both = jnp.append(state.tokens[first], block)
  # What is read too much of a sequence of one token is written over.
  both = jnp.where(at > 0, both, jnp.append(block, 0))
  before = drafter.rollback(
    state.drafter_state, first, jnp.zeros_like(at), first, gamma=0, drafts=1
  )
  return drafter.read(params.drafter, before, both, first)


def _remembered(
  schedule: Any, tokens: Int[Array, 'T'], length: Int[Array, '']
) -> PyTree:
  """Makes a schedule's state after a prompt, where an answer begins."""
  return () if schedule is None else schedule.start(tokens, length)


def _start(
  prompt: Int[Array, 'P'],
  prompt_length: Int[Array, ''],
  key: jax.Array,
  limit: Int[Array, ''],
  params: Params,
  schedule: Any,
  *,
  models: Models,
  cache_length: int,
  logits_length: int,
) -> Row:
  """A sequence whose prompt both models have read."""
  one = jnp.ones((), jnp.int32)
  logits = hidden = None
  if logits_length:
    logits = jnp.zeros((logits_length, models.verifier.vocab_size), jnp.float32)
  if models.drafter.needs_hidden:
    hidden = jnp.zeros(
      models.verifier.hidden_size(
        params.verifier, models.drafter.hidden_layers
      ),
      models.verifier.dtype(params.verifier),
    )
  tokens = jnp.zeros((cache_length,), jnp.int32).at[0].set(prompt[0])
  # Of one token, which no model has read.
  state = Row(
    tokens=tokens,
    length=one,
    done=jnp.ones((), bool),
    blocks=jnp.zeros((), jnp.int32),
    verifier_cache=models.verifier.init_cache(params.verifier, cache_length),
    drafter_state=models.drafter.init(params.drafter, cache_length),
    memory=_remembered(schedule, tokens, one),
    hidden=hidden,
    key=key,
    lenience=jnp.zeros(()),
    schedule=jax.tree.map(jnp.asarray, schedule),
    prompt_length=one,
    limit=one,
    logits=logits,
    fault=no_fault(),
    **per_token(cache_length),
  )
  return _extend(
    *(state, prompt[1:], prompt_length - 1, limit, params),
    models=models,
    fresh=True,
  )


@functools.partial(
  jax.jit,
  static_argnames=('models', 'cache_length', 'logits_length'),
)
def prefill(
  params: Params,
  prompts: Int[Array, 'B P'],
  prompt_lengths: Int[Array, 'B'],
  keys: jax.Array,
  limits: Int[Array, 'B'],
  schedule: Any = None,
  *,
  models: Models,
  cache_length: int,
  logits_length: int = 0,
) -> Row:
  """Both models read every prompt, once, in one pass each.

  Compiled once per shapes and static arguments, whatever the method and gamma.

  Args:
    params: Both models' parameters.
    prompts: Token ids, padded on the right.
    prompt_lengths: In 1..P.
    keys: One per prompt.
    limits: Length, prompt included, at which a row ends.
    schedule: A `schedules.Schedule`, or None.
    models: Who verifies, and who drafts.
    cache_length: Room of a row, at least P. A row stands still once its next
      block would not fit: `resize` it, or make room for its limit and
      `StepConfig.cache_headroom`.
    logits_length: Room for the verifier's logits of new tokens, which are
      kept in float32: for the most of them + gamma + 1, or 0 to keep none.

  Returns:
    The states, [B, ...], ready for `decode` at lenience 0.
  """
  one = functools.partial(
    _start,
    models=models,
    cache_length=cache_length,
    logits_length=logits_length,
  )
  return jax.vmap(one, (0, 0, 0, 0, None, None))(
    prompts, prompt_lengths, keys, limits, params, schedule
  )


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
  """Every row goes on with another prompt; what it has read stays read.

  Args:
    rows: [B, ...], their memory is taken; with room for P more tokens.
    params: Both models' parameters.
    prompts: Token ids, padded on the right.
    prompt_lengths: In 0..P.
    limits: Length, all that came before included, at which a row ends.
    models: Who verifies, and who drafts.

  Returns:
    The states; nothing is taken yet.
  """
  one = functools.partial(_extend, models=models, fresh=False)
  return jax.vmap(one, (0, 0, 0, 0, None))(
    rows, prompts, prompt_lengths, limits, params
  )


@jax.jit
def gather_rows(rows: Row, indices: Int[Array, 'N']) -> Row:
  """The rows at some indices; one may be taken several times."""
  # In range, which other modes would make sure of, for each leaf anew.
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
  """Puts prompts that were read into rows that are free.

  Args:
    rows: [B, ...], their memory is taken.
    prompts: From `prefill`, with the same room.
    slots: Which rows to fill.
    sources: Which prompt each takes.
    leniences: And at which lenience it is decoded.
    count: How many of the slots there are; the rest are not looked at.
  """

  def put(i, rows):
    # Slices, for a gather and a scatter of each leaf take long to compile.
    one = jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, sources[i], keepdims=False),
      prompts,
    )
    one = one.replace(lenience=leniences[i])
    return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, slots[i], 0),
      rows,
      one,
    )

  return jax.lax.fori_loop(0, count, put, rows)


@functools.partial(jax.jit, static_argnames=('models', 'cache_length'))
def resize_caches(
  rows: Row,
  params: Params,
  *,
  models: Models,
  cache_length: int,
) -> Row:
  """The same rows with more room."""

  def one(state, params):
    kept = {name: getattr(state, name) for name in ('tokens', *per_token(0))}
    return state.replace(
      **{
        name: write(jnp.zeros((cache_length, *x.shape[1:]), x.dtype), 0, x)
        for name, x in kept.items()
      },
      verifier_cache=models.verifier.resize(
        params.verifier, state.verifier_cache, cache_length
      ),
      drafter_state=models.drafter.resize(
        params.drafter, state.drafter_state, cache_length
      ),
    )

  return jax.vmap(one, (0, None))(rows, params)
