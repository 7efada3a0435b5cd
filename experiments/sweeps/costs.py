"""Measured unit costs: seconds of one call of each model.

They are the units of the modelled latency.
"""

import contextlib
import functools
import pathlib
import platform
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import decoding, drafters, methods
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.sampler import batching
from cascades.verification_config import VerificationConfig
from experiments import measuring
from experiments.records.unit_costs import CostMeasurement, Costs

# Quantile of a loop's turns: other load only adds time.
_LOW = 0.1
# No token and no limit ends a loop; a sampler has as many stop tokens.
_NO_STOP = np.full(8, -1, np.int32)
_NO_LIMIT = 2**30
# A compiled loop, and its calls of a model.
_Loop = tuple[Callable[[], Any], float]


def measure(
  verifier: checkpoints.Checkpoint,
  drafter: checkpoints.Checkpoint | None,
  bound_drafter: drafters.BoundDrafter,
  blocks: Iterable[tuple[int, int]],
  context: int = 128,
  repeats: int = 5,
  seconds: float = 4.0,
  tree_size: int | None = None,
  rows: int = 1,
) -> CostMeasurement:
  """Times the decoding loop itself, on a batch of rows at temperature 1.

  The time of a call includes sampling, verification and counting as in strict
  decoding, which is a large part of the time of small models.

  - A token of the verifier, or of a drafter that is a model: the model alone.
  - A token of another drafter, or of several drafts: its share of a proposal.
  - A block of the verifier: the block, less its drafter's calls at their unit
    cost, and no less than a token.
  """
  shapes = [(gamma, drafts) for gamma, drafts in blocks if gamma]
  longest = max((gamma for gamma, _ in shapes), default=1)
  # Keys: 'verifier', drafts per block (1 is the model alone), or a block.
  loops: dict[Any, _Loop] = {}
  loops['verifier'], _ = strict_loop(verifier, context, rows=rows)
  for drafts in {drafts for _, drafts in shapes}:
    loops[drafts] = proposal_loop(
      verifier, bound_drafter, longest, drafts, context, rows
    )
  if drafter is not None:
    loops[1], _ = strict_loop(drafter, context, rows=rows)
  drafter_calls = {}
  for block in shapes:
    loops[block], drafter_calls[block] = strict_loop(
      verifier, context, bound_drafter, *block, tree_size=tree_size, rows=rows
    )
  runs = [functools.partial(measuring.timed, run) for run, _ in loops.values()]
  turns = measuring.take_turns(runs, repeats, seconds)
  unit: dict[Any, float] = {
    name: float(np.quantile([run_s / calls for run_s, _ in outputs], _LOW))
    for (name, (_, calls)), outputs in zip(loops.items(), turns, strict=True)
  }
  token = unit.pop('verifier')
  verify: dict[int, float] = {}
  for block in shapes:
    rest = unit.pop(block) - drafter_calls[block] * unit[block[1]]
    size = decoding.tree_tokens(*block, tree_size)
    # The lower cost, if blocks of two shapes have the same size.
    verify[size] = max(token, min(rest, verify.get(size, rest)))
  low = Costs(
    verifier_token_s=token,
    drafter_token_s=unit.get(1, token),
    verify_s=verify,
    drafts_s={k: s for k, s in unit.items() if k > 1},
  )
  return CostMeasurement(low=low, processor=_processor())


def _processor() -> str:
  """Names the processor, which to JAX is always 'cpu'."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        return line.partition(':')[2].strip()
  return platform.processor() or platform.machine()


def strict_loop(
  verifier: checkpoints.Checkpoint,
  context: int,
  bound_drafter: drafters.BoundDrafter | None = None,
  gamma: int = 0,
  drafts: int = 1,
  tree_size: int | None = None,
  rows: int = 1,
) -> tuple[_Loop, float]:
  """Returns a loop of strict blocks, and the drafter's calls per block.

  Without a drafter it is the model alone, one token per call. The calls of a
  batch are those of a row.
  """
  bound_drafter = bound_drafter or drafters.BoundDrafter(
    drafters.NoDrafter(), ()
  )
  verification = 'token' if drafts == 1 else 'multi_round'
  if not bound_drafter.drafter.independent:
    verification = 'match'
  engine = batching.Engine(
    decoding.StepConfig(
      decoding.Models(verifier.model, bound_drafter.drafter),
      methods.get_method('speed'),
      gamma=gamma,
      verification=VerificationConfig(verification),
      drafts=drafts,
      tree_size=tree_size,
      always_reads_block=True,
    ),
    decoding.Params(verifier.params, bound_drafter.params),
    sampling=processing.SamplingParams(temperature=np.float32(1)),
    stop_tokens=_NO_STOP,
  )
  count = max(1, context // (gamma + 1))
  # One token, which neither model has read. The shapes are those of short
  # answers, so that their compiled programs are shared.
  prompt = engine.prefill(
    [np.array([5], np.int32)] * rows,
    jax.random.split(jax.random.key(0), rows),
    [_NO_LIMIT] * rows,
    engine.cache_length(1, context),
  )

  def run():
    # A copy, since the loop reuses the memory of its argument.
    copy = decoding.gather_rows(prompt, np.arange(rows, dtype=np.int32))
    return engine.decode(copy, max_blocks=count)

  decoded_rows, _ = run()
  counts = decoding.count(batching.fetch(decoded_rows))
  return (run, count), float(counts.drafter_calls[0]) / count


def proposal_loop(
  verifier: checkpoints.Checkpoint,
  bound_drafter: drafters.BoundDrafter,
  gamma: int,
  drafts: int,
  context: int,
  rows: int = 1,
) -> _Loop:
  """Returns a loop of proposals at temperature 1, and its drafted tokens."""
  model, drafter = verifier.model, bound_drafter.drafter
  count = max(1, context // (gamma + 1) - 1)
  room = count * (gamma + 1) + (gamma + 1) * drafts + 1
  sizes = dict(gamma=gamma, drafts=drafts)

  def propose_all(params, verifier_params, token):
    hidden = None
    if drafter.needs_hidden:
      hidden = jnp.zeros(
        model.hidden_size(verifier_params, drafter.hidden_layers),
        model.dtype(verifier_params),
      )
    text = jnp.arange(room) % 97

    def body(i, carry):
      state, cache, token = carry
      position = i * (gamma + 1)
      context = drafters.DraftContext(
        tokens=text.at[position].set(token),
        length=position + 1,
        hidden=hidden,
        verifier_cache=cache,
        key=jax.random.fold_in(jax.random.key(0), i),
        sampling=processing.SamplingParams(temperature=np.float32(1)),
        needs_bonus_probs=jnp.ones((), bool),
      )
      draft, state, cache = drafter.propose(params, state, context, **sizes)
      # As if all drafted tokens were accepted.
      draft_index, length = jnp.zeros((), jnp.int32), position + gamma + 1
      state = drafter.rollback(state, position, draft_index, length, **sizes)
      # The next token depends on the drafts, so that XLA keeps every proposal.
      return state, model.rewind(cache, length), draft.tokens.sum() % 97

    start = (
      drafter.init(params, room),
      model.init_cache(verifier_params, room),
      token,
    )
    return jax.lax.fori_loop(0, count, body, start)[2]

  batched = jax.jit(
    jax.vmap(propose_all, (None, None, 0), axis_name=decoding.ROWS)
  )
  run = functools.partial(
    batched, bound_drafter.params, verifier.params, np.full(rows, 5)
  )
  return run, count * (gamma + 1)
