"""What one call of each model costs: the units of the modelled latency."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades import decoding, drafters, methods
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.sampler import batching, continuous_batching
from cascades.verification_config import VerificationConfig
from experiments.records.metrics import CostRange, Costs

# Of the turns that a loop had.
_LOW, _HIGH = 0.1, 0.9
# No token ends a loop, and no limit; as many stop tokens as a sampler has.
_NEVER = np.full(8, -1, np.int32)
_LIMIT = 2**30


class TimedLoop(NamedTuple):
  """Something compiled, to be timed.

  Attributes:
    run: Takes `given`, and gives arrays to wait for.
    given: Its arguments.
    calls: How often it does what a unit is of.
  """

  run: Callable
  given: tuple
  calls: int


def measure(
  verifier: checkpoints.Checkpoint,
  drafter: checkpoints.Checkpoint | None,
  bound_drafter: drafters.BoundDrafter,
  blocks: Iterable[tuple[int, int]],
  context: int = 128,
  repeats: int = 5,
  seconds: float = 4.0,
  tree_size: int | None = None,
) -> CostRange:
  """Times the decoding loop itself, one sequence, at temperature 1.

  A unit is what the loop takes for a call, with drawing, verifying and counting
  as strict decoding does them: beside models this small that is no trifle.

  - A token of the verifier, or of a drafter that is a model: that model alone.
  - Of another drafter, and of several drafts: a share of a whole proposal.
  - A block, for the verifier: all of it but its drafter's calls, at the unit of
    these; no less than a token.

  Args:
    verifier: Decodes alone, and verifies.
    drafter: The model that drafts; None where it is no model.
    bound_drafter: What drafts, put together for this verifier.
    blocks: (gamma, drafts per block) to time.
    context: Tokens in the cache at the end of a loop, at the most.
    repeats: Turns of each loop, at the least.
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
  # By what a unit is of: a model, drafts per block, or a block.
  loops: dict[Hashable, TimedLoop] = {'verifier': _alone(verifier, context)}
  shares = {drafts for _, drafts in blocks}
  if drafter is not None:
    loops[1] = _alone(drafter, context)
    shares -= {1}
  for drafts in shares:
    made = proposal_loop(verifier, bound_drafter, longest, drafts, context)
    loops[drafts] = made._replace(calls=made.calls * (longest + 1))
  called = {}
  for block in blocks:
    loops[block], called[block] = strict_loop(
      verifier, bound_drafter, *block, tree_size, context
    )
  taken = time_in_turns(loops, repeats, seconds)

  def at(share: float) -> Costs:
    found = {name: float(np.quantile(s, share)) for name, s in taken.items()}
    token = found.pop('verifier')
    verify: dict[int, float] = {}
    for gamma, drafts in blocks:
      calls = called[gamma, drafts]
      rest = found.pop((gamma, drafts)) - calls * found[drafts]
      size = decoding.tree_tokens(gamma, drafts, tree_size)
      # Of two kinds of blocks the lower, where they are of one size.
      verify[size] = max(token, min(rest, verify.get(size, rest)))
    return Costs(
      verifier_token_s=token,
      drafter_token_s=found.get(1, token),
      verify_s=verify,
      drafts_s={k: s for k, s in found.items() if k > 1},
    )

  return CostRange(at(_LOW), at(_HIGH))


def time_in_turns(
  loops: Mapping[Hashable, TimedLoop], repeats: int, seconds: float
) -> dict[Hashable, list[float]]:
  """Seconds per call of some loops that take turns, after one not counted.

  Args:
    loops: By name.
    repeats: Turns of each, at the least.
    seconds: More of them until so many seconds are gone.
  """
  for run, given, _ in loops.values():
    jax.block_until_ready(run(*given))
  taken: dict[Hashable, list[float]] = {name: [] for name in loops}
  until = time.perf_counter() + seconds
  while repeats > 0 or time.perf_counter() < until:
    repeats -= 1
    for name, (run, given, calls) in loops.items():
      start = time.perf_counter()
      jax.block_until_ready(run(*given))
      taken[name].append((time.perf_counter() - start) / calls)
  return taken


def _alone(checkpoint: checkpoints.Checkpoint, context: int) -> TimedLoop:
  """A model that decodes alone, a token per call."""
  none = drafters.BoundDrafter(drafters.NoDrafter(), ())
  return strict_loop(checkpoint, none, 0, 1, None, context)[0]


def strict_loop(
  verifier: checkpoints.Checkpoint,
  bound_drafter: drafters.BoundDrafter,
  gamma: int,
  drafts: int,
  tree_size: int | None,
  context: int,
) -> tuple[TimedLoop, float]:
  """Strict blocks; and how many calls of the drafter one of them makes."""
  several = 'multi_round' if bound_drafter.drafter.independent else 'match'
  engine = batching.Engine(
    decoding.StepConfig(
      decoding.Models(verifier.model, bound_drafter.drafter),
      methods.get_method('speed'),
      gamma,
      VerificationConfig('token' if drafts == 1 else several),
      drafts,
      tree_size,
      always_reads_block=True,
    ),
    decoding.Params(verifier.params, bound_drafter.params),
    sampling=processing.SamplingParams(temperature=np.float32(1)),
    stop_tokens=_NEVER,
  )
  count = max(1, context // (gamma + 1))
  # One token, which both models are to read yet. The shapes are those of short
  # answers, which may be compiled already, or will be.
  rows = engine.prefill(
    [np.array([5], np.int32)],
    jax.random.split(jax.random.key(0), 1),
    [_LIMIT],
    engine.cache_length(1, context),
  )

  def run(rows):
    # A copy, for the loop takes the memory of what it is given.
    copy = decoding.gather_rows(rows, np.zeros(1, np.int32))
    return engine.decode(copy, max_blocks=count)

  loop = TimedLoop(run, (rows,), count)
  after, _ = run(rows)
  counts = decoding.count(continuous_batching.fetch(after))
  return loop, float(counts.drafter_calls[0]) / count


def forward_loop(
  checkpoint: checkpoints.Checkpoint,
  width: int,
  context: int,
  logits: bool = True,
) -> TimedLoop:
  """Bare forward passes that read `width` tokens each.

  Args:
    checkpoint: The model. Of one that says a part of the vocabulary alone, the
      logits are of that part, as they are where it drafts.
    width: Tokens of a pass.
    context: Tokens in the cache at the end.
    logits: Whether they are made; else a pass ends with the states.
  """
  model, calls = checkpoint.model, context // width

  @jax.jit
  def run(params):
    params, _ = model.split_vocab_ids(params)

    def body(i, carry):
      cache, tokens = carry
      said, hidden, cache = decoding.read_hidden(
        model, params, cache, tokens, i * width
      )
      # The next tokens depend on what was made, so that no pass is left out.
      last = said if logits else hidden
      return cache, processing.argmax_lowest_id(last)

    tokens = jnp.full((width,), 5, jnp.int32)
    cache = model.init_cache(params, context)
    return jax.lax.fori_loop(0, calls, body, (cache, tokens))

  return TimedLoop(run, (checkpoint.params,), calls)


def proposal_loop(
  verifier: checkpoints.Checkpoint,
  bound_drafter: drafters.BoundDrafter,
  gamma: int,
  drafts: int,
  context: int,
) -> TimedLoop:
  """Proposals at temperature 1."""
  model, drafter = verifier.model, bound_drafter.drafter
  count = max(1, context // (gamma + 1) - 1)
  room = count * (gamma + 1) + (gamma + 1) * drafts + 1 + drafter.cache_headroom
  sizes = dict(gamma=gamma, drafts=drafts)

  def one(params, verifier_params, token):
    hidden = None
    if drafter.needs_hidden:
      hidden = jnp.zeros(
        model.hidden_size(verifier_params, drafter.hidden_layers),
        model.dtype(verifier_params),
      )
    text = jnp.arange(room) % 97

    def body(i, carry):
      state, cache, token = carry
      at = i * (gamma + 1)
      context = drafters.DraftContext(
        tokens=text.at[at].set(token),
        length=at + 1,
        hidden=hidden,
        verifier_cache=cache,
        key=jax.random.fold_in(jax.random.key(0), i),
        sampling=processing.SamplingParams(temperature=np.float32(1)),
        needs_bonus_probs=jnp.ones((), bool),
      )
      draft, state, cache = drafter.propose(params, state, context, **sizes)
      # As if all had been kept.
      draft_index, length = jnp.zeros((), jnp.int32), at + gamma + 1
      state = drafter.rollback(state, at, draft_index, length, **sizes)
      # The next token hangs on the drafts, so that none is left out.
      return state, model.rewind(cache, length), draft.tokens.sum() % 97

    start = (
      drafter.init(params, room),
      model.init_cache(verifier_params, room),
      token,
    )
    return jax.lax.fori_loop(0, count, body, start)[2]

  over = jax.vmap(one, (None, None, 0), axis_name=decoding.ROWS)
  given = bound_drafter.params, verifier.params, np.array([5])
  return TimedLoop(jax.jit(over), given, count)
