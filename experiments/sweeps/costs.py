"""What one call of each model costs: the units of the modelled latency."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import decoding, drafters
from cascades.methods import processing
from cascades.models import checkpoints
from experiments.records.metrics import Costs, Spread

# Of the turns that a loop had.
_LOW, _HIGH = 0.1, 0.9


def measure(
  verifier: checkpoints.Checkpoint,
  drafter: checkpoints.Checkpoint | drafters.Equipped,
  blocks: Iterable[tuple[int, int]],
  context: int = 128,
  repeats: int = 15,
  seconds: float = 4.0,
  tree_size: int | None = None,
) -> Spread:
  """Times bare forward passes of both models, one sequence, in compiled loops.

  Args:
    verifier: Read one token at a time, and a block at a time.
    drafter: Read one token of each draft at a time. Where it is no model, its
      unit is a share of a whole proposal, drawing included.
    blocks: (gamma, drafts per block) to time both at.
    context: Tokens in the cache at the end of a loop.
    repeats: Loops of each, the arms taking turns.
    seconds: More of them until so many seconds are gone: a loop of small models
      takes a few milliseconds, and a machine that others share may be busy for
      longer than all that `repeats` asks for.
    tree_size: Most drafted tokens that the verifier reads in a block of
      several drafts; None for all.

  Returns:
    Seconds per call. What else the machine does only adds to them, and to long
    arithmetic more than to long reading; so the lowest tenth counts.
  """
  blocks = [(gamma, drafts) for gamma, drafts in blocks if gamma]
  longest = max((gamma for gamma, _ in blocks), default=1)
  loops: dict[Any, tuple[Callable, tuple, int]] = {
    'verifier': reading(verifier, 1, context)
  }
  for drafts in {1, *(drafts for _, drafts in blocks)}:
    name = 'drafter', drafts
    if isinstance(drafter, checkpoints.Checkpoint):
      loops[name] = reading(drafter, drafts, context)
    elif drafter.drafter.most is None or drafts <= drafter.drafter.most:
      run, given, count = proposing(verifier, drafter, longest, drafts, context)
      loops[name] = run, given, count * (longest + 1)
  for size in {decoding.tree_tokens(*block, tree_size) for block in blocks}:
    loops[size] = reading(verifier, size + 1, max(context, size + 1))
  for run, given, _ in loops.values():
    jax.block_until_ready(run(*given))
  taken: dict[Any, list[float]] = {name: [] for name in loops}
  until = time.perf_counter() + seconds
  while repeats > 0 or time.perf_counter() < until:
    repeats -= 1
    for name, (run, given, calls) in loops.items():
      start = time.perf_counter()
      jax.block_until_ready(run(*given))
      taken[name].append((time.perf_counter() - start) / calls)

  def at(share: float) -> Costs:
    found = {name: float(np.quantile(s, share)) for name, s in taken.items()}
    return Costs(
      verifier_token_s=found.pop('verifier'),
      drafter_token_s=found.pop(('drafter', 1)),
      verify_s={k: s for k, s in found.items() if isinstance(k, int)},
      drafts_s={k[1]: s for k, s in found.items() if isinstance(k, tuple)},
    )

  return Spread(at(_LOW), at(_HIGH))


def reading(
  checkpoint: checkpoints.Checkpoint, width: int, context: int
) -> tuple[Callable, tuple, int]:
  """A compiled loop of forward passes that read `width` tokens each.

  Returns:
    The loop, its arguments, and how many passes it makes.
  """
  model, calls = checkpoint.model, context // width

  @jax.jit
  def run(params):
    def body(i, carry):
      cache, tokens = carry
      logits, cache = decoding.read(model, params, cache, tokens, i * width)
      # The next tokens depend on the logits, so that no pass is left out.
      return cache, jnp.argmax(logits, -1).astype(jnp.int32)

    tokens = jnp.full((width,), 5, jnp.int32)
    cache = model.init_cache(params, context)
    return jax.lax.fori_loop(0, calls, body, (cache, tokens))

  return run, (checkpoint.params,), calls


def proposing(
  verifier: checkpoints.Checkpoint,
  equipped: drafters.Equipped,
  gamma: int,
  drafts: int,
  context: int,
) -> tuple[Callable, tuple, int]:
  """A compiled loop of proposals at temperature 1.

  Returns:
    The loop, its arguments, and how many proposals it makes.
  """
  model, drafter = verifier.model, equipped.drafter
  count = max(1, context // (gamma + 1) - 1)
  room = count * (gamma + 1) + (gamma + 1) * drafts + 1 + drafter.slack
  sizes = dict(gamma=gamma, drafts=drafts)

  def one(params, verifier_params, token):
    hidden = None
    if drafter.needs_hidden:
      hidden = jnp.zeros(
        model.hidden_size(verifier_params), model.dtype(verifier_params)
      )
    text = jnp.arange(room) % 97

    def body(i, carry):
      state, cache, token = carry
      at = i * (gamma + 1)
      seen = drafters.Seen(text.at[at].set(token), at + 1, hidden, cache)
      how = processing.Processing(temperature=np.float32(1))
      key = jax.random.fold_in(jax.random.key(0), i)
      draft, state, cache = drafter.propose(
        params, state, seen, key, how, **sizes
      )
      # As if all had been kept.
      path, length = jnp.zeros((), jnp.int32), at + gamma + 1
      state = drafter.keep(state, at, path, length, **sizes)
      # The next token hangs on the drafts, so that none is left out.
      return state, model.rewind(cache, length), draft.tokens.sum() % 97

    start = (
      drafter.init(params, room),
      model.init_cache(verifier_params, room),
      token,
    )
    return jax.lax.fori_loop(0, count, body, start)[2]

  over = jax.vmap(one, (None, None, 0), axis_name=decoding.ROWS)
  given = equipped.params, verifier.params, np.array([5])
  return jax.jit(over), given, count
