"""The loop: draft gamma tokens, verify them in one call, keep what stays.

`step` is written for one sequence; `decode` runs `while_loop(vmap(step))`,
so every row of a batch advances on its own. Around it are the few things that
whoever keeps a batch busy has to do between two loops: `prefill` prompts,
`place` them in rows that are free, `extend` a row by another turn, `resize`
the caches. Each is compiled once per shapes and static arguments; those that
change rows where they lie take their memory.

Rolling a cache back is setting one integer:

  slot          0 ............... length-1 | length ........ length+gamma
  tokens        final ............... last | x_1 ........... next
  caches before |<-- length - 1 -->|
  step writes                       last     x_1 .. x_gamma
  rewound to    |<-- new length - 1 ------------->|

Only integers are selected; buffers and caches never are. What lies past
`length` is masked until it is overwritten. A finished row advances by 0.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import drafters, methods, sampling, verification


@struct.dataclass
class SamplingState:
  """One sequence and both models' memories of it; `vmap` for a batch.

  Invariant between steps: tokens[:length] is final, and both caches hold
  exactly tokens[:length - 1].

  T is the room of the caches; a step writes up to length + `slack`. R is the
  room for logits, or there are none.
  """

  # Evolving.
  tokens: Int[Array, 'T']
  length: Int[Array, '']
  done: Bool[Array, '']
  verifier_cache: PyTree
  drafter_state: PyTree
  # Where the verifier said the last token; only for drafters that look at it.
  hidden: Float[Array, 'D'] | None
  # Fixed for a row.
  key: jax.Array
  lenience: Float[Array, '']
  prompt_length: Int[Array, '']
  limit: Int[Array, '']
  # Per token: where it came from; whether the rule defers the draft that was
  # examined there; blocks, drafted tokens and calls of the drafter up to the
  # end of its block; how likely the verifier at temperature 1 thought it; and
  # (if asked for) all that the verifier said.
  source: Int[Array, 'T']
  deferral: Bool[Array, 'T']
  taken: Int[Array, 'T 3']
  logprob: Float[Array, 'T']
  logits: Float[Array, 'R V'] | None

  # Counters, as field standards define them; see `records.Record`. Of states
  # outside of compiled code, batched or not: those of an answer that is cut are
  # those of the same state with another `length`.

  @property
  def blocks(self) -> np.ndarray:
    """Blocks since the prompt."""
    return self._last_taken[..., 0]

  @property
  def drafted(self) -> np.ndarray:
    """Tokens that the drafter proposed."""
    return self._last_taken[..., 1]

  @property
  def drafter_calls(self) -> np.ndarray:
    """Forward passes of the drafter."""
    return self._last_taken[..., 2]

  @property
  def examined(self) -> np.ndarray:
    """Drafted tokens that verification reached."""
    return self.accepted + self.residual

  @property
  def accepted(self) -> np.ndarray:
    """Drafted tokens that were kept."""
    return self._count(np.asarray(self.source) == verification.DRAFT)

  @property
  def deferred(self) -> np.ndarray:
    """Examined tokens where the rule defers."""
    return self._count(np.asarray(self.deferral))

  @property
  def residual(self) -> np.ndarray:
    """Tokens sampled after a rejection."""
    return self._count(np.asarray(self.source) == verification.RESIDUAL)

  @property
  def bonus(self) -> np.ndarray:
    """Tokens sampled after a block kept whole."""
    return self._count(np.asarray(self.source) == verification.BONUS)

  @property
  def _last_taken(self) -> np.ndarray:
    last = np.asarray(self.length)[..., None, None] - 1
    return np.take_along_axis(np.asarray(self.taken), last, -2)[..., 0, :]

  def _count(self, which: np.ndarray) -> np.ndarray:
    first, end = (
      np.asarray(x)[..., None] for x in (self.prompt_length, self.length)
    )
    index = np.arange(which.shape[-1])
    return (which & (index >= first) & (index < end)).sum(-1)


def _write(buffer: Array, at: Int[Array, ''] | int, values: Array) -> Array:
  """buffer with `values` from row `at` on; they must fit."""
  start = (at,) + (0,) * (buffer.ndim - 1)
  return jax.lax.dynamic_update_slice(
    buffer, values.astype(buffer.dtype), start
  )


def check_drafter(
  drafter: drafters.Drafter, scheme: verification.Scheme, drafts: int
) -> None:
  """Refuses what a drafter cannot do.

  Raises:
    ValueError: It has not so many drafts, or they are not independent draws
      and the scheme wants them to be.
  """
  name = type(drafter).__name__
  if drafter.most is not None and drafts > drafter.most:
    raise ValueError(
      f'drafts: {drafts} will not do; {name} has {drafter.most} to offer.'
    )
  if not drafter.independent and scheme.verification != 'match':
    raise ValueError(
      f'verification: the drafts of {name} are not independent draws, as'
      f" {scheme.verification!r} wants them; take 'match'."
    )


def slack(drafter: drafters.Drafter, gamma: int, drafts: int = 1) -> int:
  """Slots that a block may write beyond a sequence."""
  return (gamma + 1) * drafts + drafter.slack


def tree_tokens(gamma: int, drafts: int, tree_size: int | None = None) -> int:
  """Drafted tokens that the verifier reads in a block.

  A single draft shares nothing: it is read whole, whatever the size.
  """
  if drafts == 1 or tree_size is None:
    return gamma * drafts
  return min(gamma * drafts, tree_size)


def distributions(
  drafter_logits: Float[Array, 'V'],
  verifier_logits: Float[Array, 'V'],
  how: sampling.Processing,
  q: Callable[..., Float[Array, 'V']] = sampling.probabilities,
) -> methods.Distributions:
  """What methods look at, of both models' logits at one position.

  Args:
    drafter_logits: A row of `drafters.Draft.logits`.
    verifier_logits: The verifier's.
    how: From logits to probabilities.
    q: What a drafter's token was drawn from: `Drafter.probabilities`.
  """
  return methods.Distributions(
    q=q(drafter_logits, how),
    p=sampling.probabilities(verifier_logits, how),
    q_gate=sampling.gate_probabilities(drafter_logits),
    p_gate=sampling.gate_probabilities(verifier_logits),
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
  drafts: int = 1,
  tree_size: int | None = None,
  return_laws: bool = False,
) -> SamplingState | tuple[SamplingState, Float[Array, 'gamma_1 V']]:
  """One block of one sequence, in the order of the paper.

  With `return_laws`, also the law of each of its tokens, given those before.
  """
  at = state.length - 1
  draft_key, verify_key = jax.vmap(jax.random.fold_in, (None, 0))(
    state.key, 2 * state.taken[at, 0] + jnp.arange(2)
  )
  sizes = dict(gamma=gamma, drafts=drafts)

  # 1. Draft gamma tokens, so many times; and what each was drawn from.
  seen = drafters.Seen(
    state.tokens, state.length, state.hidden, state.verifier_cache
  )
  draft, drafter_state, verifier_cache = drafter.propose(
    drafter_params, state.drafter_state, seen, draft_key, how, **sizes
  )
  draft = drafters.permitted(draft, how)

  # 2. Read the last token and all drafts with the verifier, in one call.
  size = tree_tokens(gamma, drafts, tree_size)
  taken = state.taken[at] + jnp.stack([1, draft.count.sum(), draft.calls])
  tokens, branches, places, draft = drafters.tree(state.tokens[at], draft, size)
  logits, hidden, verifier_cache = drafters.read_hidden(
    verifier,
    verifier_params,
    verifier_cache,
    tokens,
    at,
    branches,
  )
  # Made once: fused into each of its readers, it would be made for each.
  logits = jax.lax.optimization_barrier(logits)

  def row(i, path):
    of_verifier = logits[i if drafts == 1 else places[path, i]]
    return distributions(
      draft.logits[i, path], of_verifier, how, drafter.probabilities
    )

  # 3. How many drafts stay, and the token after them.
  verdict = verification.verify(
    method,
    state.lenience,
    verify_key,
    draft.tokens,
    row,
    scheme,
    draft.count,
    draft.known,
  )
  n, path = verdict.num_accepted, verdict.path
  index = jnp.arange(gamma + 1)
  block = jnp.where(
    index == n,
    verdict.next_token,
    jnp.append(draft.tokens[path], verdict.next_token),
  )
  sources = jnp.where(index < n, verification.DRAFT, verdict.next_source)

  # 4. End at the first stop token or at the limit, also inside a block.
  is_stop = (block[:, None] == stop_tokens).any(-1) & (index <= n)
  stopped = is_stop.any()
  emitted = jnp.where(stopped, jnp.argmax(is_stop), n) + 1
  emitted = jnp.minimum(emitted, state.limit - state.length)
  emitted = jnp.where(state.done, 0, emitted)

  # 5. Commit by moving `length`; roll both caches back to length - 1. Of
  # several drafts, the slots of the one that stays come to the front first.
  length = state.length + emitted
  ended = (is_stop & (index < emitted)).any() | (length >= state.limit)
  if drafts > 1:
    kept = places[path]
    verifier_cache = verifier.move(verifier_cache, at, at + kept)
    logits, hidden = logits[kept], hidden[kept]
  kept_hidden, kept_logits = state.hidden, state.logits
  if kept_hidden is not None:
    last_said = hidden[jnp.maximum(emitted - 1, 0)]
    kept_hidden = jnp.where(state.done, kept_hidden, last_said)
  if kept_logits is not None:
    kept_logits = _write(
      kept_logits, state.length - state.prompt_length, logits
    )
  committed = state.replace(
    tokens=_write(state.tokens, state.length, block),
    length=length,
    done=state.done | ended,
    verifier_cache=verifier.rewind(verifier_cache, length - 1),
    drafter_state=drafter.keep(drafter_state, at, path, length - 1, **sizes),
    hidden=kept_hidden,
    source=_write(state.source, state.length, sources),
    # The bonus token stands where no draft was examined.
    deferral=_write(
      state.deferral,
      state.length,
      verdict.deferred & (sources != verification.BONUS),
    ),
    taken=_write(
      state.taken, state.length, jnp.broadcast_to(taken, (gamma + 1, 3))
    ),
    logprob=_write(
      state.logprob,
      state.length,
      jax.vmap(sampling.log_probability)(logits, block),
    ),
    logits=kept_logits,
  )
  if not return_laws:
    return committed

  def law(i):
    d = row(i, path)
    # As in verification: the verifier writes where nothing is known of q.
    unknown = (i == draft.count[path]) & ~draft.known[path]
    return jnp.where(unknown, d.p, method.law(d, state.lenience))

  return committed, jax.vmap(law)(index)


def _extend(
  state: SamplingState,
  prompt: Int[Array, 'P'],
  prompt_length: Int[Array, ''],
  limit: Int[Array, ''],
  verifier_params: PyTree,
  drafter_params: PyTree,
  *,
  verifier: Any,
  drafter: drafters.Drafter,
) -> SamplingState:
  """One sequence and its next prompt, which both models read in one pass.

  They read [last, prompt]. Padding on the right is read too; rewinding the
  caches to the sequence's length hides it.
  """
  at = state.length - 1
  block = jnp.concatenate([state.tokens[at][None], prompt])
  _, hidden, cache = drafters.read_hidden(
    verifier, verifier_params, state.verifier_cache, block, at
  )
  drafter_state = drafter.read(drafter_params, state.drafter_state, block, at)
  length = state.length + prompt_length
  kept_hidden = state.hidden
  if kept_hidden is not None:
    # A sequence of one token has no state where that was said: its own.
    kept_hidden = hidden[jnp.maximum(prompt_length - 1, 0)]
  return state.replace(
    tokens=_write(state.tokens, state.length, prompt),
    source=_write(state.source, state.length, jnp.zeros_like(prompt)),
    length=length,
    prompt_length=length,
    limit=limit,
    done=length >= limit,
    verifier_cache=verifier.rewind(cache, length - 1),
    drafter_state=drafter.keep(
      drafter_state, at, jnp.zeros((), jnp.int32), length - 1, gamma=0, drafts=1
    ),
    hidden=kept_hidden,
    taken=state.taken.at[length - 1].set(0),
  )


def per_token(room: int) -> dict[str, Array]:
  """What a state keeps of each token beside the token, all of it 0."""
  return dict(
    source=jnp.zeros((room,), jnp.int8),
    deferral=jnp.zeros((room,), bool),
    taken=jnp.zeros((room, 3), jnp.int32),
    logprob=jnp.zeros((room,), jnp.float32),
  )


def _start(
  token: Int[Array, ''],
  key: jax.Array,
  verifier_params: PyTree,
  drafter_params: PyTree,
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  cache_length: int,
  logits_length: int,
) -> SamplingState:
  """A sequence of one token, which no model has read."""
  one = jnp.ones((), jnp.int32)
  logits = hidden = None
  if logits_length:
    logits = jnp.zeros((logits_length, verifier.vocab_size), jnp.float32)
  if drafter.needs_hidden:
    hidden = jnp.zeros(
      verifier.hidden_size(verifier_params), verifier.dtype(verifier_params)
    )
  return SamplingState(
    tokens=jnp.zeros((cache_length,), jnp.int32).at[0].set(token),
    length=one,
    done=jnp.ones((), bool),
    verifier_cache=verifier.init_cache(verifier_params, cache_length),
    drafter_state=drafter.init(drafter_params, cache_length),
    hidden=hidden,
    key=key,
    lenience=jnp.zeros(()),
    prompt_length=one,
    limit=one,
    logits=logits,
    **per_token(cache_length),
  )


@functools.partial(
  jax.jit,
  static_argnames=('verifier', 'drafter', 'cache_length', 'logits_length'),
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
  cache_length: int,
  logits_length: int = 0,
) -> SamplingState:
  """Both models read every prompt, once, in one pass each.

  Compiled once per shapes and static arguments, whatever the method and gamma.

  Args:
    verifier_params: The verifier's checkpoint.
    drafter_params: The drafter's; anything the drafter takes.
    prompts: Token ids, padded on the right.
    prompt_lengths: In 1..P.
    keys: One per prompt.
    limits: Length, prompt included, at which a row ends.
    verifier: `models.LanguageModel` or alike.
    drafter: Proposes; `drafters.NoDrafter` with gamma = 0.
    cache_length: Room of a row, at least P. A row stands still once its next
      block would not fit: `resize` it, or make room for its limit + `slack`.
    logits_length: Room for the verifier's logits of new tokens, which are
      kept in float32: for the most of them + gamma + 1, or 0 to keep none.

  Returns:
    The states, [B, ...], ready for `decode` at lenience 0.
  """

  def start(prompt, prompt_length, key, limit, verifier_params, drafter_params):
    models = dict(verifier=verifier, drafter=drafter)
    params = verifier_params, drafter_params
    state = _start(
      prompt[0],
      key,
      *params,
      cache_length=cache_length,
      logits_length=logits_length,
      **models,
    )
    return _extend(
      state, prompt[1:], prompt_length - 1, limit, *params, **models
    )

  return jax.vmap(start, (0, 0, 0, 0, None, None))(
    prompts, prompt_lengths, keys, limits, verifier_params, drafter_params
  )


@functools.partial(
  jax.jit, static_argnames=('verifier', 'drafter'), donate_argnames='rows'
)
def extend(
  rows: SamplingState,
  verifier_params: PyTree,
  drafter_params: PyTree,
  prompts: Int[Array, 'B P'],
  prompt_lengths: Int[Array, 'B'],
  limits: Int[Array, 'B'],
  *,
  verifier: Any,
  drafter: drafters.Drafter,
) -> SamplingState:
  """Every row goes on with another prompt; what it has read stays read.

  Args:
    rows: [B, ...], their memory is taken; with room for P more tokens.
    verifier_params: As for `prefill`, and so the rest.
    drafter_params: As for `prefill`.
    prompts: Token ids, padded on the right.
    prompt_lengths: In 0..P.
    limits: Length, all that came before included, at which a row ends.
    verifier: As for `prefill`.
    drafter: As for `prefill`.

  Returns:
    The states; nothing is taken yet.
  """
  one = functools.partial(_extend, verifier=verifier, drafter=drafter)
  return jax.vmap(one, (0, 0, 0, 0, None, None))(
    rows, prompts, prompt_lengths, limits, verifier_params, drafter_params
  )


@jax.jit
def take(rows: SamplingState, indices: Int[Array, 'N']) -> SamplingState:
  """The rows at some indices; one may be taken several times."""
  # In range, which other modes would make sure of, for each leaf anew.
  return jax.tree.map(lambda x: x.at[indices].get(mode='clip'), rows)


@functools.partial(jax.jit, donate_argnames='rows')
def place(
  rows: SamplingState,
  prompts: SamplingState,
  slots: Int[Array, 'B'],
  sources: Int[Array, 'B'],
  leniences: Float[Array, 'B'],
  count: Int[Array, ''],
) -> SamplingState:
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


@functools.partial(
  jax.jit, static_argnames=('verifier', 'drafter', 'cache_length')
)
def resize(
  rows: SamplingState,
  verifier_params: PyTree,
  drafter_params: PyTree,
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  cache_length: int,
) -> SamplingState:
  """The same rows with more room."""

  def one(state, verifier_params, drafter_params):
    kept = {name: getattr(state, name) for name in ('tokens', *per_token(0))}
    return state.replace(
      **{
        name: _write(jnp.zeros((cache_length, *x.shape[1:]), x.dtype), 0, x)
        for name, x in kept.items()
      },
      verifier_cache=verifier.resize(
        verifier_params, state.verifier_cache, cache_length
      ),
      drafter_state=drafter.resize(
        drafter_params, state.drafter_state, cache_length
      ),
    )

  return jax.vmap(one, (0, None, None))(rows, verifier_params, drafter_params)


@functools.partial(
  jax.jit,
  static_argnames=(
    'verifier',
    'drafter',
    'method',
    'gamma',
    'scheme',
    'drafts',
    'tree_size',
  ),
  donate_argnames='rows',
)
def decode(
  rows: SamplingState,
  verifier_params: PyTree,
  drafter_params: PyTree,
  how: sampling.Processing,
  stop_tokens: Int[Array, 'K'],
  live: Int[Array, ''] | int = 0,
  max_blocks: Int[Array, ''] | int = 2**30,
  *,
  verifier: Any,
  drafter: drafters.Drafter,
  method: methods.Method,
  gamma: int,
  scheme: verification.Scheme = verification.STANDARD,
  drafts: int = 1,
  tree_size: int | None = None,
) -> tuple[SamplingState, Int[Array, '']]:
  """Decodes rows, each at its lenience, until there is something else to do.

  That is when so few rows are left, after so many blocks, or when a row needs
  more room. Compiled once per shapes and static arguments: prompts, keys,
  leniences, temperature and limits are traced.

  Args:
    rows: [B, ...], their memory is taken.
    verifier_params: As for `prefill`.
    drafter_params: As for `prefill`.
    how: From logits to probabilities, for both models.
    stop_tokens: Ids that end a row; they are emitted.
    live: Stop when no more than so many rows go on.
    max_blocks: Stop after so many blocks.
    verifier: As for `prefill`.
    drafter: As for `prefill`.
    method: Verifies; with gamma 0, whatever it is, the verifier decodes alone.
    gamma: Tokens drafted per block, >= 0.
    scheme: How blocks are verified.
    drafts: How many are drafted per block.
    tree_size: Most drafted tokens that the verifier reads in a block, at least
      `drafts`; None for all. Drafts that begin alike share what they begin
      with, and end before a level of the tree that might not fit.

  Returns:
    The states, and the number of blocks that the loop made.

  Raises:
    ValueError: The method cannot be verified by the scheme, or the drafter
      cannot draft so often.
  """
  if gamma == 0:
    # Without drafts there is nothing to be lenient about.
    method, scheme = methods.METHODS['verifier_only'], verification.STANDARD
    drafts, tree_size = 1, None
  scheme.check(method, drafts)
  check_drafter(drafter, scheme, drafts)
  one_block = jax.vmap(
    functools.partial(
      step,
      verifier=verifier,
      drafter=drafter,
      method=method,
      gamma=gamma,
      scheme=scheme,
      drafts=drafts,
      tree_size=tree_size,
    ),
    (0, None, None, None, None),
    axis_name=drafters.ROWS,
  )
  room = rows.tokens.shape[-1]

  def goes_on(carry):
    rows, blocks = carry
    # A finished row is still written to, past its end.
    fits = rows.length + slack(drafter, gamma, drafts) <= room
    return ((~rows.done).sum() > live) & fits.all() & (blocks < max_blocks)

  def body(carry):
    rows, blocks = carry
    rows = one_block(rows, verifier_params, drafter_params, how, stop_tokens)
    return rows, blocks + 1

  return jax.lax.while_loop(goes_on, body, (rows, jnp.zeros((), jnp.int32)))
