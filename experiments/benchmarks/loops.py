"""The loop against gemma's own sampler, against its floor, and by the formula.

Arms of a pair of models and a batch size, taking turns:

  gemma      the verifier alone, by gemma's own sampler
  alone      the verifier alone, by ours (gamma 0)
  lock-step  both models read every token, and one token comes out of it
  strict     ours, gamma after gamma
  token_v3   ours, at several leniences
  floor      bare forward passes, as many of each model as a strict arm makes,
             of the same shapes, in a loop without any rule
  reading    the verifier's passes of such a floor
  drafting   bare forward passes of the drafter, a token each

Models with random weights agree on nothing. Theirs is a method that keeps each
draft with a given probability, and does all the work of the method it stands
for besides.
"""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import (
  decoding,
  drafters,
  load_model,
  methods,
  tasks,
  verification,
)
from cascades.methods import processing
from cascades.models import checkpoints, language, tokenizers
from cascades.sampler import batching
from experiments import cli


def check(config) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('prompt_tokens', 'new_tokens', 'repeats'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')
  for name in ('gammas', 'batch_sizes', 'acceptances', 'leniences'):
    if not config[name]:
      raise ValueError(f'{name}: it is empty; give at least one.')
    if name != 'leniences' and min(config[name]) <= 0:
      raise ValueError(f'{name}: give numbers above 0.')
  for rate in config.acceptances:
    if rate > 1:
      raise ValueError(f'acceptances: {rate} is no probability.')


def forced(method: methods.Method) -> methods.Method:
  """A method that keeps every draft with a probability, its lenience.

  It computes what `method` would say, at its strict lenience, and so costs
  what `method` costs.
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
    rule=method.rule,
  )


@dataclasses.dataclass
class Pair:
  """Two models and what they are asked.

  Attributes:
    name: As in the config.
    verifier: Packed on a CPU, as `load_model` gives it.
    drafter: Likewise.
    prompts: Token ids, one per row of the largest batch.
    new_tokens: Of every arm.
    repeats: Turns of every arm that are timed.
    random: Whether the weights are random.
    compiled: Functions, and how long they took, for arms that share them.
  """

  name: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint
  prompts: list[np.ndarray]
  new_tokens: int
  repeats: int
  random: bool
  compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)


def load_pair(config, spec) -> Pair:
  """A pair of a config: bundled names, or shapes with random weights."""
  name = spec.name
  # Large ones may have numbers of their own.
  new_tokens = spec.get('new_tokens', config.new_tokens)
  sizes = new_tokens, spec.get('repeats', config.repeats)
  rows = max(config.batch_sizes)
  if isinstance(spec.verifier, str):
    pair = load_model(spec.verifier), load_model(spec.drafter)
    prompts = _prompts(pair[0], rows, new_tokens)
    return Pair(name, *pair, prompts, *sizes, False)
  dtype = jnp.dtype(config.dtype)
  pair = [
    _random(dict(shape), dtype, config.seed + i)
    for i, shape in enumerate((spec.verifier, spec.drafter))
  ]
  rng = np.random.default_rng(config.seed)
  size = rows, config.prompt_tokens
  # Past the ids of tokens that gemma's sampler forbids or stops at.
  prompts = list(rng.integers(300, pair[0].model.vocab_size, size))
  return Pair(name, *pair, prompts, *sizes, True)


def _random(shape, dtype, seed: int) -> checkpoints.Checkpoint:
  """A model of a shape; its weights are made on the device."""
  model = language.from_config(shape, dtype)
  params = jax.jit(model.init_params)(jax.random.key(seed))
  checkpoint = checkpoints.Checkpoint(model, params, None)
  return checkpoint.packed() if jax.default_backend() == 'cpu' else checkpoint


def _prompts(verifier, rows: int, new_tokens: int) -> list[np.ndarray]:
  """Word problems whose answers are long enough for every arm."""
  task = tasks.TASKS['word_problems']
  examples = task.load(split='test', seed=0, num_examples=40 * rows)
  ids = [
    np.array(verifier.tokenizer.encode(e.prompt, add_bos=True), np.int32)
    for e in examples
  ]
  engine = greedy_engine(
    verifier, None, 'verifier_only', 0, stops=(tokenizers.EOS,)
  )
  keys = jax.random.split(jax.random.key(0), len(ids))
  asked = batching.Asked(ids, keys, [0], new_tokens)
  long = [
    job.prompt
    for job, row in batching.run(engine, asked, 64, batching.Usage())
    if row.length - row.prompt_length == new_tokens
    and row.tokens[row.length - 1] != tokenizers.EOS
  ]
  if len(long) < rows:
    raise ValueError(
      f'new_tokens: too few answers of the verifier have {new_tokens} tokens;'
      ' take fewer.'
    )
  return [ids[i] for i in sorted(long)[:rows]]


def greedy_engine(verifier, drafter, method, gamma: int, stops=(-1,)):
  """Greedy decoding by ours; a drafter may be equipped already."""
  if not gamma:
    drafter = drafters.Equipped(
      drafters.NoDrafter(verifier.model.vocab_size), ()
    )
  elif isinstance(drafter, checkpoints.Checkpoint):
    drafter = drafters.Equipped(
      drafters.ModelDrafter(drafter.model), drafter.params
    )
  models = decoding.Models(verifier.model, drafter.drafter)
  return batching.Engine(
    decoding.Decoder(models, methods.get_method(method), gamma),
    decoding.Params(verifier.params, drafter.params),
    how=processing.Processing(temperature=np.float32(0)),
    stop_tokens=np.array(stops, np.int32),
  )


@dataclasses.dataclass
class Arm:
  """Something that reads prompts, and then writes.

  Attributes:
    fields: What it is.
    prefill: Of nothing, to a state.
    decode: Of that state, to another.
    facts: Of the final state, what else it says of itself.
    compile_s: Seconds that its two parts took to compile.
    temporary_bytes: Of the loop, where it is known.
  """

  fields: dict[str, Any]
  prefill: Callable[[], Any]
  decode: Callable[[Any], Any]
  facts: Callable[[Any], dict[str, Any]]
  compile_s: dict[str, float] = dataclasses.field(default_factory=dict)
  temporary_bytes: int | None = None


def _compiled(pair: Pair, key, jitted, *args, **static):
  """A function compiled ahead of time, once, and the seconds that took."""
  if key not in pair.compiled:
    start = time.perf_counter()
    exe = jitted.lower(*args, **static).compile()
    pair.compiled[key] = exe, time.perf_counter() - start
  return pair.compiled[key]


def ours(
  pair: Pair, batch: int, method, gamma: int, lenience, fields, drafts: int = 1
) -> Arm:
  """Our loop."""
  engine = greedy_engine(pair.verifier, pair.drafter, method, gamma)
  decoder = engine.decoder
  if drafts > 1:
    several = verification.Scheme('multi_round')
    decoder = dataclasses.replace(decoder, scheme=several, drafts=drafts)
  prompts = pair.prompts[:batch]
  longest = max(map(len, prompts))
  padded, lengths = batching.pad(prompts, longest)
  keys = jax.random.split(jax.random.key(0), batch)
  room = _room(pair, drafts)
  inputs = engine.params, padded, lengths, keys, lengths + pair.new_tokens
  read, read_s = _compiled(
    pair,
    ('prefill', batch, gamma > 0, room),
    decoding.prefill,
    *inputs,
    models=decoder.models,
    cache_length=room,
  )

  def prefill():
    rows = read(*inputs)
    return rows.replace(lenience=jnp.full(batch, lenience, jnp.float32))

  then = (
    *(engine.params, engine.how, engine.stop_tokens),
    *(np.int32(0), np.int32(2**30)),
  )
  loop, loop_s = _compiled(
    pair,
    ('decode', batch, gamma, drafts, decoder.method.name),
    decoding.decode,
    prefill(),
    *then,
    decoder=decoder,
  )

  def facts(state):
    rows, blocks = state
    counts = decoding.count(rows)
    examined = int(counts.examined.sum())
    return {
      'tokens': int((rows.length - rows.prompt_length).sum()),
      'blocks': int(blocks),
      'live_blocks': int(rows.blocks.sum()),
      'acceptance': int(counts.accepted.sum()) / examined if examined else None,
      'first': rows.tokens[0, lengths[0] : lengths[0] + pair.new_tokens],
    }

  return Arm(
    fields | {'gamma': gamma},
    prefill,
    lambda rows: loop(rows, *then),
    facts,
    {'prefill': read_s, 'decode': loop_s},
    loop.memory_analysis().temp_size_in_bytes,
  )


def _room(pair: Pair, drafts: int = 1) -> int:
  """Cache slots of every arm, gemma's own included."""
  longest = max(map(len, pair.prompts))
  return batching.bucket(longest + pair.new_tokens + 16 * drafts)


def gemma(pair: Pair, batch: int) -> Arm:
  """gemma's own sampler, from token ids on: its prefill and its loop."""
  checkpoint = pair.verifier.unpacked()
  longest = max(map(len, pair.prompts[:batch]))
  padded, _ = batching.pad(pair.prompts[:batch], longest)
  prefill, decode = language.own_sampler(
    checkpoint.model,
    checkpoint.params,
    padded,
    cache_length=_room(pair),
    new_tokens=pair.new_tokens,
  )

  def facts(state):
    return {
      'tokens': batch * int(state.step),
      'blocks': int(state.step),
      'first': state.predicted_tokens[0],
    }

  arm = Arm({'arm': 'gemma', 'gamma': 0}, prefill, decode, facts)

  def first_less_second(run, *args):
    # Its parts are jitted here and there: the first call less a later one.
    seconds = []
    for _ in range(2):
      start = time.perf_counter()
      found = jax.block_until_ready(run(*args))
      seconds.append(time.perf_counter() - start)
    return found, max(0, seconds[0] - seconds[1])

  state, arm.compile_s['prefill'] = first_less_second(prefill)
  _, arm.compile_s['decode'] = first_less_second(decode, state)
  return arm


def lock_step(pair: Pair, batch: int) -> Arm:
  """Both models read each token; the next is drawn from the strict target."""
  verifier, drafter = pair.verifier, pair.drafter
  base = ours(pair, batch, 'speed', 1, 0.0, {'arm': 'lock-step'})
  how = processing.Processing(temperature=np.float32(0))
  method = methods.METHODS['speed']

  def step(state, verifier_params, drafter_params):
    at = state.length - 1
    last = state.tokens[at][None]
    zq, drafter_state = decoding.read(
      drafter.model, drafter_params, state.drafter_state, last, at
    )
    zp, verifier_cache = decoding.read(
      verifier.model, verifier_params, state.verifier_cache, last, at
    )
    d = decoding.distributions(zq[0], zp[0], how)
    keys = jax.random.split(jax.random.fold_in(state.key, state.length), 3)
    draft = processing.sample(keys[0], d.q)
    accepted = jax.random.uniform(keys[1]) < method.acceptance(d, 0.0)[draft]
    instead = processing.sample(keys[2], method.residual(d, 0.0))
    return state.replace(
      tokens=state.tokens.at[state.length].set(
        jnp.where(accepted, draft, instead)
      ),
      source=state.source.at[state.length].set(
        jnp.where(accepted, verification.DRAFT, verification.RESIDUAL)
      ),
      taken=state.taken.at[state.length].set(state.taken[at] + 1),
      blocks=state.blocks + 1,
      length=state.length + 1,
      verifier_cache=verifier_cache,
      drafter_state=drafter_state,
    )

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(rows, *params):
    one = jax.vmap(step, (0, None, None))
    rows = jax.lax.fori_loop(
      0, pair.new_tokens, lambda _, s: one(s, *params), rows
    )
    return rows, jnp.int32(pair.new_tokens)

  params = verifier.params, drafter.params
  loop, seconds = _compiled(
    pair, ('lock-step', batch), decode, base.prefill(), *params
  )
  return dataclasses.replace(
    base,
    decode=lambda rows: loop(rows, *params),
    compile_s=base.compile_s | {'decode': seconds},
    temporary_bytes=loop.memory_analysis().temp_size_in_bytes,
  )


def passes(
  pair: Pair, batch: int, arm: str, gamma: int, blocks: int, paths: int = 1
) -> Arm:
  """Bare forward passes, block after block, without any rule.

  Args:
    pair: Whose models.
    batch: Rows.
    arm: 'floor': gamma + 1 passes of the drafter, one of the verifier;
      'reading': that one; 'drafting': one of the drafter.
    gamma: Of the block.
    blocks: How many.
    paths: Drafts side by side.
  """
  verifier, drafter = pair.verifier, pair.drafter
  room = _room(pair, paths)
  drafts = {'floor': gamma + 1 if gamma else 0, 'reading': 0, 'drafting': 1}[
    arm
  ]

  # Drafts that have nothing in common.
  other = jnp.arange(gamma * paths).reshape(paths, gamma)
  logits = jnp.zeros((gamma + 1, paths, 1))
  branches = decoding.tree(
    jnp.int32(0), decoding.whole(other, logits, 0), gamma * paths
  ).branches

  def step(i, state, params):
    caches, token = state
    size = (gamma + 1) * paths
    at = i % (room // size) * size
    verifier_cache, drafter_cache = (
      c.model.rewind(cache, at)
      for c, cache in zip((verifier, drafter), caches, strict=True)
    )

    def draft(carry, j):
      cache, token = carry
      beside = decoding.side_by_side(j, paths, gamma)
      logits, cache = decoding.read(
        drafter.model,
        params[1],
        cache,
        jnp.broadcast_to(token, (paths,)),
        *((at + j,) if paths == 1 else (at, beside)),
      )
      # What is read next hangs on what was said, so that no pass is left out.
      token = jnp.argmax(logits.sum(0)).astype(jnp.int32)
      return (cache, token), token

    drafted = token + jnp.arange(gamma + 1)
    if drafts:
      (drafter_cache, token), drafted = jax.lax.scan(
        draft, (drafter_cache, token), jnp.arange(drafts)
      )
    if arm != 'drafting':
      tree = jnp.append(drafted[0], jnp.repeat(drafted[1:], paths))
      logits, verifier_cache = decoding.read(
        verifier.model, params[0], verifier_cache, tree, at, branches
      )
      token = jnp.argmax(logits.sum(0)).astype(jnp.int32)
    return (verifier_cache, drafter_cache), token

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(state, *params):
    one = jax.vmap(step, (None, 0, None))
    return jax.lax.fori_loop(0, blocks, lambda i, s: one(i, s, params), state)

  def prefill():
    caches = [c.model.init_cache(c.params, room) for c in (verifier, drafter)]
    repeated = jax.tree.map(lambda x: jnp.stack([x] * batch), caches)
    return tuple(repeated), jnp.full((batch,), 5, jnp.int32)

  params = verifier.params, drafter.params
  loop, seconds = _compiled(
    pair, (arm, batch, gamma, blocks, paths), decode, prefill(), *params
  )
  return Arm(
    {'arm': arm, 'gamma': gamma, 'blocks': blocks},
    prefill,
    lambda state: loop(state, *params),
    lambda state: {},
    {'decode': seconds},
    loop.memory_analysis().temp_size_in_bytes,
  )


def _arms(config, pair: Pair, batch: int) -> Iterator[Arm]:
  """The arms of a pair at a batch size."""
  yield gemma(pair, batch)
  speed, token_v3 = methods.METHODS['speed'], methods.METHODS['token_v3']
  plain = ours(pair, batch, 'verifier_only', 0, 0.0, {'arm': 'alone'})
  yield plain
  yield lock_step(pair, batch)
  yield passes(pair, batch, 'floor', 0, pair.new_tokens)
  if batch == 1:
    yield passes(pair, batch, 'drafting', 0, pair.new_tokens)
  rates, leniences = [speed.strict], config.leniences
  if pair.random:
    speed, token_v3 = forced(speed), forced(token_v3)
    rates = leniences = config.acceptances
  middle = rates[len(rates) // 2]
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [middle]:
      fields = {'arm': 'strict', 'lenience': rate}
      arm = ours(pair, batch, speed, gamma, rate, fields)
      yield arm
      if rate == middle:
        # As many blocks as the loop makes.
        blocks = arm.facts(arm.decode(arm.prefill()))['blocks']
        yield passes(pair, batch, 'floor', gamma, blocks)
        if batch == 1:
          yield passes(pair, batch, 'reading', gamma, blocks)
  for lenience in leniences:
    fields = {'arm': 'token_v3', 'lenience': lenience}
    yield ours(pair, batch, token_v3, config.gamma, lenience, fields)


def _time(pair: Pair, batch: int, arms: list[Arm], bar) -> Iterator:
  """Figures of arms that take turns."""
  seconds = [{'prefill': [], 'decode': []} for _ in arms]
  facts = [{} for _ in arms]
  for turn in range(pair.repeats + 1):
    for i, arm in enumerate(arms):
      start = time.perf_counter()
      state = jax.block_until_ready(arm.prefill())
      middle = time.perf_counter()
      state = jax.block_until_ready(arm.decode(state))
      end = time.perf_counter()
      if turn:
        seconds[i]['prefill'].append(middle - start)
        seconds[i]['decode'].append(end - middle)
      else:
        facts[i] = arm.facts(state)
      del state
      bar.update()
  reference = facts[0]['first']
  for arm, times, said in zip(arms, seconds, facts, strict=True):
    if 'first' in said:
      # Greedy, and strict: the verifier's own words, unless rounding differs.
      said['same_tokens'] = np.array_equal(said.pop('first'), reference)
    row = {'pair': pair.name, 'batch': batch, **arm.fields, **said}
    row |= {f'{part}_s': values for part, values in times.items()}
    row |= {f'{part}_compile_s': s for part, s in arm.compile_s.items()}
    row['temporary_bytes'] = arm.temporary_bytes
    row['weight_bytes'] = _weight_bytes(row, pair)
    yield row
  statistics = jax.devices()[0].memory_stats() or {}
  if 'peak_bytes_in_use' in statistics:
    yield {
      'pair': pair.name,
      'batch': batch,
      'arm': 'peak memory',
      'bytes': statistics['peak_bytes_in_use'],
    }


def _weight_bytes(row, pair: Pair) -> int:
  """Bytes of weights that an arm read while it decoded."""
  of_verifier, of_drafter = (
    sum(x.nbytes for x in jax.tree.leaves(c.params))
    for c in (pair.verifier, pair.drafter)
  )
  drafts = {'reading': 0, 'drafting': 1, 'lock-step': 1}.get(
    row['arm'], row['gamma'] + 1 if row['gamma'] else 0
  )
  if row['arm'] == 'drafting':
    of_verifier = 0
  return row['blocks'] * (of_verifier + drafts * of_drafter)


def _copy_bandwidth() -> dict[str, Any]:
  """Bytes that the device reads and writes in a second, copying."""
  x = jnp.ones(2**26, jnp.float32)
  # In place: new memory would be paid for besides.
  copy = jax.jit(lambda x: x + 1, donate_argnums=0)
  x, seconds = jax.block_until_ready(copy(x)), []
  for _ in range(7):
    start = time.perf_counter()
    x = jax.block_until_ready(copy(x))
    seconds.append(time.perf_counter() - start)
  return {
    'arm': 'copy',
    'bytes_per_s': 2 * x.nbytes / float(np.median(seconds)),
  }


def _curve(config, pair: Pair) -> dict[str, Any]:
  """A curve in one call, and point by point."""
  engine = greedy_engine(pair.verifier, pair.drafter, 'token_v3', config.gamma)
  prompt = pair.prompts[:1]
  key = jax.random.split(jax.random.key(0), 1)
  points = np.linspace(0, 1, config.curve_points)
  usage = batching.Usage()

  def run(leniences):
    return [
      row.tokens[: row.length].tolist()
      for _, row in sorted(
        batching.run(
          engine,
          batching.Asked(prompt, key, leniences, config.new_tokens),
          64,
          usage,
        ),
        key=lambda found: found[0],
      )
    ]

  seconds = {'together': [], 'one by one': []}
  for turn in range(config.repeats + 1):
    start = time.perf_counter()
    together = run(points)
    middle = time.perf_counter()
    alone = [run([point])[0] for point in points]
    if turn:
      seconds['together'].append(middle - start)
      seconds['one by one'].append(time.perf_counter() - middle)
    elif together != alone:
      raise RuntimeError('A point of the curve depends on the others.')
  return {
    'pair': pair.name,
    'arm': 'curve',
    'points': len(points),
    'together_s': seconds['together'],
    'one_by_one_s': seconds['one by one'],
  }


def _abstract(shape, dtype):
  """A model and its parameters without their numbers."""
  model = language.from_config(dict(shape), dtype)
  params = model.param_shapes()
  if jax.default_backend() == 'cpu':
    params = jax.eval_shape(model.pack, params)
    model = dataclasses.replace(model, packed=True)
  return model, params


def _lowered(verifier, drafter, batch: int, gamma: int, room: int):
  """The loop of two abstract models, traced but not compiled."""
  models = decoding.Models(verifier[0], drafters.ModelDrafter(drafter[0]))
  params = decoding.Params(verifier[1], drafter[1])
  whole = jax.ShapeDtypeStruct((batch,), jnp.int32)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
  rows = jax.eval_shape(
    functools.partial(decoding.prefill, cache_length=room, models=models),
    params,
    jax.ShapeDtypeStruct((batch, 64), jnp.int32),
    whole,
    keys,
    whole,
  )
  return decoding.decode.lower(
    rows,
    params,
    processing.Processing(temperature=np.float32(1)),
    np.array([1] * 8, np.int32),
    np.int32(0),
    np.int32(1),
    decoder=decoding.Decoder(models, methods.METHODS['token_v3'], gamma),
  )


def _compile(config) -> dict[str, Any]:
  """Seconds to compile the loop of a large pair, with abstract weights."""
  dtype = jnp.dtype(config.dtype)
  start = time.perf_counter()
  pair = [
    _abstract(config.large[name], dtype) for name in ('verifier', 'drafter')
  ]
  lowered = _lowered(*pair, 1, config.gamma, 512)
  middle = time.perf_counter()
  lowered.compile()
  return {
    'arm': 'compile',
    'trace_s': middle - start,
    'compile_s': time.perf_counter() - middle,
  }


def _memory(config) -> dict[str, Any]:
  """Temporaries of the loop at Gemma's vocabulary, and what a draft adds."""
  spec = config.memory
  dtype = jnp.dtype(config.dtype)
  pair = [_abstract(spec[name], dtype) for name in ('verifier', 'drafter')]

  def temporaries(gamma):
    loop = _lowered(*pair, spec.batch, gamma, 128).compile()
    return loop.memory_analysis().temp_size_in_bytes

  size = spec.batch * spec.verifier['vocab_size']
  some, more = (temporaries(n * spec.gamma) for n in (1, 2))
  return {
    'arm': 'memory',
    'batch': spec.batch,
    'gamma': spec.gamma,
    'vocab_size': spec.verifier['vocab_size'],
    'temporary_bytes': some,
    'twice_gamma_bytes': more,
    'logits_bytes': 2 * (spec.gamma + 1) * size * dtype.itemsize,
    'row_bytes': size * dtype.itemsize,
  }


def _cache() -> dict[str, Any]:
  """Seconds of one command, twice, with an empty compilation cache."""
  seconds = []
  with tempfile.TemporaryDirectory() as folder:
    environment = os.environ | {
      'JAX_COMPILATION_CACHE_DIR': folder,
      'JAX_PLATFORMS': jax.default_backend(),
    }
    for _ in range(2):
      start = time.perf_counter()
      subprocess.run(
        [sys.executable, '-m', 'experiments.sample', '--prompt=12 in words:'],
        env=environment,
        check=True,
        capture_output=True,
      )
      seconds.append(time.perf_counter() - start)
    files = sum(path.is_file() for path in pathlib.Path(folder).rglob('*'))
  return {
    'arm': 'compilation cache',
    'first_s': seconds[0],
    'second_s': seconds[1],
    'files': files,
  }


def measure(config, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
  """All figures, as they are known.

  Args:
    config: What to time.
    done: Figures of an earlier run, which are not measured again.
  """
  groups = {(row.get('pair'), row.get('batch', row['arm'])) for row in done}
  bar = cli.progress(0, 'measuring the machine')
  singles = [('copy', _copy_bandwidth)]
  if config.compiles:
    singles += [
      ('compile', lambda: _compile(config)),
      ('memory', lambda: _memory(config)),
      ('compilation cache', _cache),
    ]
  for arm, single in singles:
    if all(row['arm'] != arm for row in done):
      bar.set_description(arm)
      yield single()
  for spec in config.pairs:
    todo = [b for b in config.batch_sizes if (spec.name, b) not in groups]
    trained = isinstance(spec.verifier, str)
    if not todo and (not trained or (spec.name, 'curve') in groups):
      continue
    bar.set_description(f'{spec.name}: loading')
    pair = load_pair(config, spec)
    for batch in todo:
      bar.set_description(f'{pair.name}, batch {batch}: compiling')
      arms = list(_arms(config, pair, batch))
      bar.set_description(f'{pair.name}, batch {batch}')
      bar.total += len(arms) * (pair.repeats + 1)
      yield from _time(pair, batch, arms, bar)
      pair.compiled.clear()
      del arms
      # A process can map only so much memory, and each loop takes a lot of it.
      jax.clear_caches()
    if not pair.random and (pair.name, 'curve') not in groups:
      yield _curve(config, pair)
  bar.close()


def _median(values: Sequence[float]) -> float:
  return float(np.median(values))


def rows(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The timed arms, with what follows from them.

  Returns:
    For each arm its fields, `whole_s` of prefill and decoding, `tokens_per_s`
    of decoding, `ms_per_block`,
    `over_gemma` and `over_lock_step` (times as fast), `over_floor` (times as
    slow, for arms that have a floor), `formula` (times as fast as ours alone
    by the formula, batch 1) and `over_formula` (measured by predicted), and
    `bytes_per_s` of weights.
  """
  timed = [row for row in figures if 'decode_s' in row]

  def of(row, arm, gamma=None):
    for other in timed:
      same = (other['pair'], other['batch']) == (row['pair'], row['batch'])
      if same and other['arm'] == arm and gamma in (None, other['gamma']):
        return other
    return None

  found = []
  for row in timed:
    decode = _median(row['decode_s'])
    out = {
      name: row.get(name)
      for name in ('pair', 'batch', 'arm', 'gamma', 'lenience', 'acceptance')
    }
    out |= {
      'prefill_s': _median(row['prefill_s']),
      'decode_s': decode,
      'whole_s': _median(np.add(row['prefill_s'], row['decode_s']).tolist()),
      'compile_s': sum(
        row.get(f'{part}_compile_s', 0) for part in ('prefill', 'decode')
      ),
      'ms_per_block': 1e3 * decode / row['blocks'],
      'bytes_per_s': row['weight_bytes'] / decode,
    }
    if row['arm'] in ('floor', 'reading', 'drafting'):
      found.append(out)
      continue
    out['tokens_per_s'] = row['tokens'] / decode
    for name, arm in (('gemma', 'gemma'), ('lock_step', 'lock-step')):
      other = of(row, arm)
      speed = other['tokens'] / _median(other['decode_s'])
      out[f'over_{name}'] = out['tokens_per_s'] / speed
    floor_ = of(row, 'floor', row['gamma'])
    # Only as many blocks can be compared.
    same = floor_ is not None and floor_['blocks'] == row['blocks']
    if row['arm'] in ('alone', 'strict') and same:
      out['over_floor'] = decode / _median(floor_['decode_s'])
    if row['arm'] == 'strict' and row['batch'] == 1:
      alone = of(row, 'alone')
      measured = out['tokens_per_s'] * _median(alone['decode_s'])
      out['over_alone'] = measured / alone['tokens']
      costs = [
        of(row, arm, gamma)
        for arm, gamma in (
          ('floor', 0),
          ('reading', row['gamma']),
          ('drafting', 0),
        )
      ]
      out['formula'] = _formula(row, *costs)
      out['over_formula'] = out['over_alone'] / out['formula']
    found.append(out)
  return found


def _formula(row, one, reading, drafting) -> float:
  """Tokens per block by what a block costs, in passes of the verifier.

  Leviathan et al. 2023, with the measured cost of reading gamma + 1 tokens in
  place of 1: ((1 - b^(gamma+1)) / (1 - b)) / (gamma c + v_gamma / v_1).
  """
  v1, v, d = (
    _median(arm['decode_s']) / arm['blocks'] for arm in (one, reading, drafting)
  )
  tokens = sum(row['acceptance'] ** i for i in range(row['gamma'] + 1))
  return tokens / (row['gamma'] * d / v1 + v / v1)


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per arm; then the targets."""
  lines = [
    f'{"pair":<9}{"batch":>5}  {"arm":<10}{"gamma":>5}{"lenience":>9}'
    f'{"accepted":>9}{"compile s":>10}{"prefill ms":>11}{"whole ms":>9}'
    f'{"ms/block":>9}'
    f'{"tokens/s":>9}{"x gemma":>8}{"x floor":>8}{"GB/s":>6}'
  ]

  def cell(value, width, digits):
    return f'{"-" if value is None else f"{value:.{digits}f}":>{width}}'

  for row in rows(figures):
    lines.append(
      f'{row["pair"]:<9}{row["batch"]:>5}  {row["arm"]:<10}{row["gamma"]:>5}'
      + cell(row['lenience'], 9, 2)
      + cell(row['acceptance'], 9, 3)
      + cell(row['compile_s'], 10, 1)
      + cell(1e3 * row['prefill_s'], 11, 1)
      + cell(1e3 * row['whole_s'], 9, 1)
      + cell(row['ms_per_block'], 9, 2)
      + cell(row.get('tokens_per_s'), 9, 0)
      + cell(row.get('over_gemma'), 8, 2)
      + cell(row.get('over_floor'), 8, 2)
      + cell(row['bytes_per_s'] / 1e9, 6, 1)
    )
  lines += ['', f'{"target":<68}{"bound":>9}{"found":>9}  met']
  for name, bound, value, met in targets(figures):
    lines.append(f'{name:<68}{bound:>9}{value:>9}  {"yes" if met else "NO"}')
  return '\n'.join(lines)


def targets(
  figures: Sequence[dict[str, Any]],
) -> list[tuple[str, str, str, bool]]:
  """What the loop is held to: name, bound, what was found, whether it is met.

  Of several arms that a target is about, the worst counts, unless it says
  otherwise.
  """
  timed = rows(figures)
  others = {row['arm']: row for row in figures if 'decode_s' not in row}
  found = []

  def add(name, sign, bound, value, digits=2, unit=''):
    met = value <= bound if sign == '<=' else value >= bound
    said = f'{value:.{digits}f}{unit}'
    found.append((name, f'{sign} {bound:g}{unit}', said, bool(met)))

  for pair in dict.fromkeys(row['pair'] for row in timed):
    mine = [row for row in timed if row['pair'] == pair]
    for batch in dict.fromkeys(row['batch'] for row in mine):
      ratios = [
        row['over_floor']
        for row in mine
        if row['batch'] == batch and 'over_floor' in row
      ]
      bound = 1.25 if pair == 'bundled' else 1.1
      name = f'{pair}, batch {batch}: loop time by its floor'
      add(f'{name}, median of gammas', '<=', bound, float(np.median(ratios)))
      add(f'{name}, worst gamma', '<=', bound, max(ratios))
      alone = next(
        row for row in mine if row['batch'] == batch and row['arm'] == 'alone'
      )
      add(
        f'{pair}, batch {batch}: the verifier alone, by gemma',
        '>=',
        1,
        alone['over_gemma'],
      )
    strict = [
      row for row in mine if row['arm'] == 'strict' and row['batch'] == 1
    ]
    if strict and pair == 'bundled':
      best = max(strict, key=lambda row: row['tokens_per_s'])
      name = f'{pair}, batch 1: strict at gamma {best["gamma"]}, by'
      add(f'{name} gemma', '>=', 2, best['over_gemma'])
      add(f'{name} lock-step', '>=', 3, best['over_lock_step'])
    if strict:
      worst = min(strict, key=lambda row: row['over_formula'])
      best = max(strict, key=lambda row: row['tokens_per_s'])
      name = f'{pair}, batch 1: speed-up by the formula'
      for which, row in (('best', best), ('worst', worst)):
        title = f'{name}, {which} gamma {row["gamma"]}'
        add(title, '>=', 0.9, row['over_formula'])
  if 'curve' in others:
    row = others['curve']
    ratio = _median(row['one_by_one_s']) / _median(row['together_s'])
    add(f'a curve of {row["points"]} points, by so many calls', '>=', 3, ratio)
  if 'compile' in others:
    row = others['compile']
    seconds = row['trace_s'] + row['compile_s']
    add('compiling the loop of a large pair', '<=', 60, seconds, 0, ' s')
  if 'memory' in others:
    row = others['memory']
    # The two models' logits are 2; whatever else holds a block adds its own.
    more = row['twice_gamma_bytes'] - row['temporary_bytes']
    rows_ = more / row['row_bytes'] / row['gamma']
    name = 'temporaries that a draft adds, in rows of batch x vocabulary'
    add(name, '<=', 2.1, rows_)
  if 'compilation cache' in others:
    row = others['compilation cache']
    saved = row['second_s'] / row['first_s']
    add('a second process by the first, cached', '<=', 1, saved)
  return found
