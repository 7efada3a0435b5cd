"""Loops that write text: ours, gemma's own, and both models in lock-step.

All are greedy, and read the same prompts to write as many tokens. Models with
random weights agree on nothing; theirs is a `forced` method.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import decoding, methods, verification
from cascades.methods import processing
from cascades.models import language
from cascades.sampler import batching
from experiments.benchmarks import pairs, stopwatch

_GREEDY = processing.Processing(temperature=np.float32(0))


@dataclasses.dataclass
class Arm:
  """Something that reads prompts, and then writes.

  Attributes:
    fields: What its figures say of it: its name, gamma and so on.
    prefill: Reads the prompts, and returns the state to write from.
    decode: Takes that state, writes all tokens, and returns the last state.
    facts: Takes the last state, and returns what else the figures say: `tokens`
      and `blocks` of all rows, `first` for the first row's new tokens.
    compile_s: Seconds to compile each part, 'prefill' and 'decode'; a part that
      is not compiled on its own is left out.
    temporary_bytes: Bytes of temporaries of the loop; None if unknown.
  """

  fields: dict[str, Any]
  prefill: Callable[[], Any]
  decode: Callable[[Any], Any]
  facts: Callable[[Any], dict[str, Any]]
  compile_s: dict[str, float] = dataclasses.field(default_factory=dict)
  temporary_bytes: int | None = None

  def timed(self) -> tuple[dict[str, float], Any]:
    """Reads and writes once.

    Returns:
      Seconds of 'prefill' and 'decode', and the last state.
    """
    prefill_s, state = stopwatch.timed(self.prefill)
    decode_s, state = stopwatch.timed(self.decode, state)
    return {'prefill': prefill_s, 'decode': decode_s}, state


def forced(method: methods.Method, law_uses_q: bool) -> methods.Method:
  """A method that keeps every draft with a probability, its lenience.

  It computes what `method` would say, at its strict lenience, and so costs
  what `method` costs.

  Args:
    method: Whose costs are wanted.
    law_uses_q: Whether they are to be those of a lenient one, for which the
      drafter says what it would after a whole draft too.
  """
  strict = jnp.float32(method.strict)

  def acceptance(d, rate):
    # No compiler leaves this out: 0 times nan would be nan.
    return rate + 0 * method.acceptance(d, strict)

  return methods.Method(
    name=f'forced {method.name}',
    equation='a = lam',
    reference='benchmark',
    acceptance=acceptance,
    residual=lambda d, rate: method.residual(d, strict),
    law=lambda d, rate: method.law(d, strict),
    strict=None,
    drafter_only=None,
    law_uses_q=law_uses_q,
    rule=method.rule,
  )


def ours(
  pair: pairs.Pair,
  batch: int,
  method: str | methods.Method,
  gamma: int,
  lenience: float,
  fields: dict[str, Any],
  drafts: int = 1,
) -> Arm:
  """Our loop.

  Args:
    pair: Its models decode, and its prompts are read.
    batch: How many of its prompts, from the first on.
    method: A method, or its name.
    gamma: How many tokens are drafted per block; 0 for the verifier alone.
    lenience: The method's, in every row.
    fields: What figures are to say of the arm, beside gamma.
    drafts: How many drafts a block has.
  """
  engine = pairs.greedy_engine(pair.verifier, pair.drafter, method, gamma)
  decoder = engine.decoder
  if drafts > 1:
    several = verification.Scheme('multi_round')
    decoder = dataclasses.replace(decoder, scheme=several, drafts=drafts)
  read_s, read = _reading(pair, batch, engine.params, decoder)

  def prefill():
    rows = read()
    return rows.replace(lenience=jnp.full(batch, lenience, jnp.float32))

  # Until all rows are done, however many blocks that takes.
  then = (
    *(engine.params, engine.how, engine.stop_tokens),
    *(np.int32(0), np.int32(2**30)),
  )
  loop_s, loop = pair.compile(
    ('decode', batch, gamma, drafts, decoder.method.name),
    decoding.decode,
    prefill(),
    *then,
    decoder=decoder,
  )
  return Arm(
    fields | {'gamma': gamma},
    prefill,
    lambda rows: loop(rows, *then),
    functools.partial(_told, pair),
    {'prefill': read_s, 'decode': loop_s},
    loop.memory_analysis().temp_size_in_bytes,
  )


def _reading(
  pair: pairs.Pair,
  batch: int,
  params: decoding.Params,
  decoder: decoding.Decoder,
) -> tuple[float, Callable[[], decoding.Row]]:
  """Seconds to compile what reads prompts for our loop, and that function."""
  prompts = pair.prompts[:batch]
  padded, lengths = batching.pad(prompts, max(map(len, prompts)))
  keys = jax.random.split(jax.random.key(0), batch)
  room = pair.room(decoder.drafts)
  inputs = params, padded, lengths, keys, lengths + pair.new_tokens
  seconds, read = pair.compile(
    ('prefill', batch, decoder.gamma > 0, room),
    decoding.prefill,
    *inputs,
    models=decoder.models,
    cache_length=room,
  )
  return seconds, functools.partial(read, *inputs)


def _told(
  pair: pairs.Pair, state: tuple[decoding.Row, jax.Array]
) -> dict[str, Any]:
  """What figures say of the last state of our loop."""
  rows, blocks = state
  counts = decoding.count(rows)
  examined = int(counts.examined.sum())
  start = len(pair.prompts[0])
  return {
    'tokens': int((rows.length - rows.prompt_length).sum()),
    'blocks': int(blocks),
    'live_blocks': int(rows.blocks.sum()),
    'acceptance': int(counts.accepted.sum()) / examined if examined else None,
    'first': rows.tokens[0, start : start + pair.new_tokens],
  }


def gemma(pair: pairs.Pair, batch: int) -> Arm:
  """gemma's own sampler, from token ids on: its prefill and its loop.

  Args:
    pair: Its verifier writes, and its prompts are read.
    batch: How many of its prompts, from the first on.
  """
  checkpoint = pair.verifier.unpacked()
  prompts = pair.prompts[:batch]
  padded, _ = batching.pad(prompts, max(map(len, prompts)))
  prefill, decode = language.own_sampler(
    checkpoint.model,
    checkpoint.params,
    padded,
    cache_length=pair.room(),
    new_tokens=pair.new_tokens,
  )

  def facts(state):
    return {
      'tokens': batch * int(state.step),
      'blocks': int(state.step),
      'first': state.predicted_tokens[0],
    }

  arm = Arm({'arm': 'gemma', 'gamma': 0}, prefill, decode, facts)
  arm.compile_s['prefill'], state = _beyond_a_second(prefill)
  arm.compile_s['decode'], _ = _beyond_a_second(decode, state)
  return arm


def _beyond_a_second(run: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Seconds to compile what is jitted here and there, and what it returns.

  They are what a first call takes beyond a second one.
  """
  first, _ = stopwatch.timed(run, *args)
  second, found = stopwatch.timed(run, *args)
  return max(0, first - second), found


def lock_step(pair: pairs.Pair, batch: int) -> Arm:
  """Both models read each token; the next is drawn from the strict target.

  Args:
    pair: Its models decode, and its prompts are read.
    batch: How many of its prompts, from the first on.
  """
  base = ours(pair, batch, 'speed', 1, 0.0, {'arm': 'lock-step'})
  models = pair.verifier.model, pair.drafter.model

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(rows, *params):
    step = jax.vmap(functools.partial(_step, models), (0, None))
    rows = jax.lax.fori_loop(
      0, pair.new_tokens, lambda _, s: step(s, params), rows
    )
    return rows, jnp.int32(pair.new_tokens)

  seconds, loop = pair.compile(
    ('lock-step', batch), decode, base.prefill(), *pair.params
  )
  return dataclasses.replace(
    base,
    decode=lambda rows: loop(rows, *pair.params),
    compile_s=base.compile_s | {'decode': seconds},
    temporary_bytes=loop.memory_analysis().temp_size_in_bytes,
  )


def _step(
  models: tuple[language.LanguageModel, language.LanguageModel],
  state: decoding.Row,
  params: tuple[Any, Any],
) -> decoding.Row:
  """One row after both models have read its last token.

  Args:
    models: The verifier and the drafter.
    state: The row.
    params: The weights of both, in that order.
  """
  verifier, drafter = models
  method = methods.METHODS['speed']
  at = state.length - 1
  last = state.tokens[at][None]
  zq, drafter_state = decoding.read(
    drafter, params[1], state.drafter_state, last, at
  )
  zp, verifier_cache = decoding.read(
    verifier, params[0], state.verifier_cache, last, at
  )
  d = decoding.distributions(zq[0], zp[0], _GREEDY)
  keys = jax.random.split(jax.random.fold_in(state.key, state.length), 3)
  draft = processing.sample(keys[0], d.q)
  accepted = jax.random.uniform(keys[1]) < method.acceptance(d, 0.0)[draft]
  instead = processing.sample(keys[2], method.residual(d, 0.0))
  source = jnp.where(accepted, verification.DRAFT, verification.RESIDUAL)
  return state.replace(
    tokens=state.tokens.at[state.length].set(
      jnp.where(accepted, draft, instead)
    ),
    source=state.source.at[state.length].set(source),
    taken=state.taken.at[state.length].set(state.taken[at] + 1),
    blocks=state.blocks + 1,
    length=state.length + 1,
    verifier_cache=verifier_cache,
    drafter_state=drafter_state,
  )
