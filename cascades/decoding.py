"""The loop: draft gamma tokens, verify them in one call, keep what stays.

`step` is written for one sequence; `decode` runs `while_loop(vmap(step))`,
so every row of a batch advances on its own. Rolling a cache back is setting
one integer:

  slot          0 ............... length-1 | length ........ length+gamma
  tokens        final ............... last | x_1 ........... next
  caches before |<-- length - 1 -->|
  step writes                       last     x_1 .. x_gamma
  rewound to    |<-- new length - 1 ------------->|

Only integers are selected; buffers and caches never are. What lies past
`length` is masked until it is overwritten. A finished row advances by 0.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import drafters, methods, sampling, verification


@struct.dataclass
class SamplingState:
  """One sequence and both models' memories of it; `vmap` for a batch.

  Invariant between steps: tokens[:length] is final, and both caches hold
  exactly tokens[:length - 1].

  T = prompt bucket + new tokens + slack; R = new tokens + slack.
  """

  # Evolving.
  tokens: Int[Array, 'T']
  length: Int[Array, '']
  done: Bool[Array, '']
  verifier_cache: PyTree
  drafter_state: PyTree
  # Fixed for a row.
  key: jax.Array
  lenience: Float[Array, '']
  prompt_length: Int[Array, '']
  limit: Int[Array, '']
  # Per token: where it came from, how likely the verifier at temperature 1
  # thought it, and (if asked for) all that the verifier said.
  source: Int[Array, 'T']
  logprob: Float[Array, 'T']
  logits: Float[Array, 'R V'] | None
  # Counters, as field standards define them; see `records.Record`.
  blocks: Int[Array, '']
  examined: Int[Array, '']
  accepted: Int[Array, '']
  deferred: Int[Array, '']
  residual: Int[Array, '']
  bonus: Int[Array, '']


def _write(buffer: Array, at: Int[Array, ''], values: Array) -> Array:
  """buffer with `values` from row `at` on; they must fit."""
  start = (at,) + (0,) * (buffer.ndim - 1)
  return jax.lax.dynamic_update_slice(
    buffer, values.astype(buffer.dtype), start
  )


def step(
  state: SamplingState,
  verifier_params: PyTree,
  drafter_params: PyTree,
  how: sampling.Processing,
  stop_tokens: Int[Array, 'K'],
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  method: methods.Method,
  gamma: int,
  scheme: verification.Scheme,
) -> SamplingState:
  """One block of one sequence, in the order of the paper."""
  draft_key, verify_key = jax.random.split(
    jax.random.fold_in(state.key, state.blocks)
  )
  at = state.length - 1
  last = state.tokens[at]

  # 1. Draft gamma tokens; gamma + 1 distributions.
  draft, drafter_state = drafter.propose(
    drafter_params, state.drafter_state, last, at, draft_key, gamma, how
  )

  # 2. Read [last, x_1 .. x_gamma] with the verifier, in one call.
  positions = at + jnp.arange(gamma + 1)
  logits, verifier_cache = verifier(
    verifier_params,
    jnp.concatenate([last[None], draft.tokens]),
    positions,
    drafters.visible(positions, verifier.cache_length(state.verifier_cache)),
    state.verifier_cache,
  )
  dists = methods.Distributions(
    q=draft.q,
    p=jax.vmap(sampling.probabilities, (0, None))(logits, how),
    q_gate=draft.q_gate,
    p_gate=sampling.gate_probabilities(logits),
  )

  # 3. How many drafts stay, and the token after them.
  verdict = verification.verify(
    method, state.lenience, verify_key, draft.tokens, dists, scheme
  )
  n = verdict.num_accepted
  index = jnp.arange(gamma + 1)
  block = jnp.where(
    index == n,
    verdict.next_token,
    jnp.concatenate([draft.tokens, verdict.next_token[None]]),
  )
  sources = jnp.where(index < n, verification.DRAFT, verdict.next_source)

  # 4. End at the first stop token or at the limit, also inside a block.
  is_stop = (block[:, None] == stop_tokens).any(-1) & (index <= n)
  stopped = is_stop.any()
  emitted = jnp.where(stopped, jnp.argmax(is_stop), n) + 1
  emitted = jnp.minimum(emitted, state.limit - state.length)
  emitted = jnp.where(state.done, 0, emitted)
  ended_by_next = emitted > n

  def next_is(source):
    return (ended_by_next & (verdict.next_source == source)).astype(jnp.int32)

  # The bonus token stands where no draft was examined.
  examined = emitted - next_is(verification.BONUS)

  # 5. Commit by moving `length`; roll both caches back to length - 1.
  length = state.length + emitted
  ended = (is_stop & (index < emitted)).any() | (length >= state.limit)
  kept_logits = state.logits
  if kept_logits is not None:
    kept_logits = _write(
      kept_logits, state.length - state.prompt_length, logits
    )
  return state.replace(
    tokens=_write(state.tokens, state.length, block),
    length=length,
    done=state.done | ended,
    verifier_cache=verifier.rewind(verifier_cache, length - 1),
    drafter_state=drafter.rewind(drafter_state, length - 1),
    source=_write(state.source, state.length, sources),
    logprob=_write(
      state.logprob,
      state.length,
      jax.vmap(sampling.log_probability)(logits, block),
    ),
    logits=kept_logits,
    blocks=state.blocks + ~state.done,
    examined=state.examined + examined,
    accepted=state.accepted
    + jnp.minimum(n, emitted)
    + next_is(verification.DRAFT),
    deferred=state.deferred + (verdict.deferred & (index < examined)).sum(),
    residual=state.residual + next_is(verification.RESIDUAL),
    bonus=state.bonus + next_is(verification.BONUS),
  )


def init(
  prompt: Int[Array, 'P'],
  prompt_length: Int[Array, ''],
  key: jax.Array,
  limit: Int[Array, ''],
  verifier_params: PyTree,
  drafter_params: PyTree,
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  gamma: int,
  max_new_tokens: int,
  return_logits: bool,
) -> SamplingState:
  """The state of one sequence after reading its prompt, in one pass."""
  room = max_new_tokens + gamma + 1
  total = prompt.shape[0] + room
  at = prompt_length - 1
  zero = jnp.zeros((), jnp.int32)
  logits = None
  if return_logits:
    logits = jnp.zeros((room, verifier.vocab_size), jnp.float32)
  cache = drafters.prefill(verifier, verifier_params, prompt, total)
  return SamplingState(
    tokens=jnp.pad(prompt, (0, room)),
    length=prompt_length,
    done=prompt_length >= limit,
    verifier_cache=verifier.rewind(cache, at),
    drafter_state=drafter.rewind(
      drafter.init(drafter_params, prompt, total), at
    ),
    key=key,
    lenience=jnp.zeros(()),
    prompt_length=prompt_length,
    limit=limit,
    source=jnp.zeros((total,), jnp.int8),
    logprob=jnp.zeros((total,), jnp.float32),
    logits=logits,
    blocks=zero,
    examined=zero,
    accepted=zero,
    deferred=zero,
    residual=zero,
    bonus=zero,
  )


@functools.partial(
  jax.jit,
  static_argnames=(
    'verifier',
    'drafter',
    'gamma',
    'max_new_tokens',
    'return_logits',
  ),
)
def prefill(
  verifier_params: PyTree,
  drafter_params: PyTree,
  prompts: Int[Array, 'B P'],
  prompt_lengths: Int[Array, 'B'],
  keys: jax.Array,
  limits: Int[Array, 'B'],
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  gamma: int,
  max_new_tokens: int,
  return_logits: bool = False,
) -> SamplingState:
  """Both models read every prompt, once, in one pass each.

  Compiled once per shapes and static arguments, whatever the method.

  Args:
    verifier_params: The verifier's checkpoint.
    drafter_params: The drafter's; anything the drafter takes.
    prompts: Token ids, padded on the right.
    prompt_lengths: In 1..P.
    keys: One per prompt.
    limits: Length, prompt included, at which a row ends.
    verifier: `models.LanguageModel` or alike.
    drafter: Proposes; `drafters.NoDrafter` with gamma = 0.
    gamma: Tokens drafted per block, >= 0.
    max_new_tokens: Room for new tokens; no limit may ask for more.
    return_logits: Whether to keep the verifier's logits, float32.

  Returns:
    The states, [B, ...], ready for `decode`.
  """
  start = functools.partial(
    init,
    verifier=verifier,
    drafter=drafter,
    gamma=gamma,
    max_new_tokens=max_new_tokens,
    return_logits=return_logits,
  )
  return jax.vmap(start, (0, 0, 0, 0, None, None))(
    prompts, prompt_lengths, keys, limits, verifier_params, drafter_params
  )


@functools.partial(
  jax.jit,
  static_argnames=('verifier', 'drafter', 'method', 'gamma', 'scheme'),
)
def decode(
  rows: SamplingState,
  verifier_params: PyTree,
  drafter_params: PyTree,
  leniences: Float[Array, 'B C'],
  how: sampling.Processing,
  stop_tokens: Int[Array, 'K'],
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  method: methods.Method,
  gamma: int,
  scheme: verification.Scheme = verification.STANDARD,
) -> SamplingState:
  """Decodes every row at every one of its leniences, to the end.

  Compiled once per shapes and static arguments: prompts, keys, leniences,
  temperature and limits are traced. The C copies of a row share its prompt's
  caches and its key, so that points of a curve are paired.

  Args:
    rows: From `prefill`, [B, ...].
    verifier_params: As for `prefill`.
    drafter_params: As for `prefill`.
    leniences: C of them for each row.
    how: From logits to probabilities, for both models.
    stop_tokens: Ids that end a row; they are emitted.
    verifier: As for `prefill`.
    drafter: As for `prefill`.
    method: Verifies; with gamma 0, whatever it is, the verifier decodes alone.
    gamma: As for `prefill`.
    scheme: How blocks are verified.

  Returns:
    The final states, [B, C, ...], without caches and keys.

  Raises:
    ValueError: The method cannot be verified by the scheme.
  """
  if gamma == 0:
    # Without drafts there is nothing to be lenient about.
    method, scheme = methods.METHODS['verifier_only'], verification.STANDARD
  scheme.check(method)
  copies = leniences.shape[1]
  rows = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), rows)
  rows = rows.replace(lenience=leniences.reshape(-1).astype(jnp.float32))
  one_block = jax.vmap(
    functools.partial(
      step,
      verifier=verifier,
      drafter=drafter,
      method=method,
      gamma=gamma,
      scheme=scheme,
    ),
    (0, None, None, None, None),
  )
  rows = jax.lax.while_loop(
    lambda s: ~s.done.all(),
    lambda s: one_block(s, verifier_params, drafter_params, how, stop_tokens),
    rows,
  )
  rows = rows.replace(verifier_cache=None, drafter_state=None, key=None)
  return jax.tree.map(lambda x: x.reshape(leniences.shape + x.shape[1:]), rows)
