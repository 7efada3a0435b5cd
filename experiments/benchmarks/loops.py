"""The suite 'loops': this project's loop, gemma's, and the lower bound.

Each pair at each batch size has these entrants:

  gemma     The verifier alone, by gemma's sampler.
  alone     The verifier alone, by this project's loop (gamma 0).
  strict    Strict decoding by this project's loop, at each gamma.
  token_v3  The same loop with token_v3, at several leniences.
  curve     The same, with a row for each prompt and lenience of `curve`.
  floor     The lower bound: the forward passes of a strict entrant in a loop
            without any rule.

A pair of bundled models solves word problems. A pair of shapes has random
weights, which are made on the device, and reads random tokens. Such models
never agree, so their method has a forced acceptance (`force_acceptance`).
All loops are greedy and write equally many tokens after the same prompts.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cascades import decoding, drafters, load_model, methods
from cascades.methods import processing
from cascades.models import checkpoints, gemma_library, language, memory
from cascades.sampler import batching
from experiments import measuring, tasks
from experiments.measuring import median


class Pair(NamedTuple):
  """Two models and their prompts."""

  name: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint | None
  prompts: list[np.ndarray]
  new_tokens: int
  repeats: int

  @property
  def cache_length(self) -> int:
    """Cache slots of every entrant, gemma's included."""
    longest = max(map(len, self.prompts))
    return batching.bucket(longest + self.new_tokens + 16, 64)


def _load(config: ConfigDict, spec: ConfigDict) -> Pair:
  """Loads or makes a pair."""
  sizes = [spec.get(x, config[x]) for x in ('new_tokens', 'repeats')]
  rows = max(config.batch_sizes)
  if isinstance(spec.verifier, str):
    names, task = (spec.verifier, spec.drafter), tasks.TASKS['word_problems']
    models = [load_model(name, config.dtype) for name in names]
    examples = task.load(split='test', seed=config.seed, num_examples=rows)
    texts = spec.get('prompts', [x.prompt for x in examples])
    encode = functools.partial(models[0].tokenizer.encode, add_bos=True)
    prompts = [np.array(encode(text), np.int32) for text in texts]
    return Pair(spec.name, *models, prompts, *sizes)
  models = [
    random_checkpoint(shape, config.dtype, config.seed + i)
    for i, shape in enumerate((spec.verifier, spec.drafter))
  ]
  rng = np.random.default_rng(config.seed)
  size = rows, config.prompt_tokens
  # Above the ids that gemma's sampler forbids or stops at.
  prompts = list(rng.integers(300, models[0].model.vocab_size, size))
  return Pair(spec.name, *models, prompts, *sizes)


def random_checkpoint(
  shape: ConfigDict, dtype: str, seed: int
) -> checkpoints.Checkpoint:
  """Makes a model with random weights on the device."""
  model = language.from_config(dict(shape), jnp.dtype(dtype))
  is_packed = jax.default_backend() == 'cpu'
  # Packing random parameters was measured to take 3.5 times their bytes.
  size = (4 if is_packed else 1) * memory.num_bytes(model.param_shapes())
  memory.fit_rows(1, size, 'a model with random weights')
  # Not compiled as a whole: arrays of one shape share a program.
  params = model.init_params(jax.random.key(seed))
  checkpoint = checkpoints.Checkpoint(model, params, None)
  return checkpoint.pack() if is_packed else checkpoint


def force_acceptance(method: methods.Method) -> methods.Method:
  """Makes a method that accepts drafts with a fixed probability, its lenience.

  The method computes acceptance and residual of the original at its strict
  lenience, and so has its costs.
  """
  strict = jnp.float32(method.strict)
  return dataclasses.replace(
    method,
    # A compiler cannot remove the term: 0 times nan would be nan.
    acceptance=lambda d, rate: rate + 0 * method.acceptance(d, strict),
    residual=lambda d, rate: method.residual(d, strict),
    law=lambda d, rate: method.law(d, strict),
  )


def project_loop(
  pair: Pair,
  batch: int,
  method: methods.Method,
  gamma: int,
  lenience: float | np.ndarray,
  name: str,
) -> measuring.Entrant:
  """Makes an entrant of this project's loop."""
  drafter, params = drafters.NoDrafter(), ()
  if gamma:
    drafter = drafters.ModelDrafter(pair.drafter.model)
    params = pair.drafter.params
  models = decoding.Models(pair.verifier.model, drafter)
  engine = batching.Engine(
    decoding.StepConfig(models, method, gamma),
    decoding.Params(pair.verifier.params, params),
    processing.SamplingParams(temperature=np.float32(0)),
    # No stop token: only the length ends an answer.
    stop_tokens=np.array([-1], np.int32),
  )
  prompts = pair.prompts[:batch]
  limits = [len(prompt) + pair.new_tokens for prompt in prompts]

  def prefill() -> decoding.Row:
    keys = jax.random.split(jax.random.key(0), batch)
    rows = engine.prefill(prompts, keys, limits, pair.cache_length)
    return rows.replace(lenience=jnp.full(batch, lenience, jnp.float32))

  def facts(state: tuple[decoding.Row, jax.Array]) -> dict[str, Any]:
    rows, blocks = state
    counts = decoding.count(rows)
    examined = int(counts.examined.sum())
    return {
      'tokens': int((rows.length - rows.prompt_length).sum()),
      'blocks': int(blocks),
      'acceptance': int(counts.accepted.sum()) / examined if examined else None,
      'first': np.asarray(rows.tokens[0, len(prompts[0]) : limits[0]]),
    }

  lenience_field = lenience if gamma and np.isscalar(lenience) else None
  fields = {'arm': name, 'gamma': gamma, 'lenience': lenience_field}
  return measuring.two_part_entrant(fields, prefill, engine.decode, facts)


def gemma_loop(
  checkpoint: checkpoints.Checkpoint,
  prompts: Sequence[Sequence[int]],
  new_tokens: int,
  cache_length: int,
) -> measuring.Entrant:
  """Makes an entrant of gemma's sampler, which decodes greedily.

  The router of a mixture of experts is patched here too (see `products`), as
  gemma's modules are compiled once for both samplers.
  """
  model, params, _ = checkpoint.unpack()
  padded, _ = batching.pad(prompts, max(map(len, prompts)))
  gm = gemma_library.import_gemma()
  from gemma.gm.text import _prefill, _sampler_loop
  from gemma.gm.utils import _types

  text = _types.Input(
    text=jnp.asarray(padded),
    images=None,
    config=model.module.config.input_config,
  )
  loop = _sampler_loop.SamplerLoop(
    model=model.module,
    # No token ends a row, so that all rows have one length.
    end_tokens=(),
    forbidden_tokens=None,
    sampling=gm.text.Greedy(),
    cache_length=cache_length,
    special_tokens=gm.text.Gemma2Tokenizer.special_tokens,
  )

  @language.intercept_modules()
  def prefill():
    return _prefill.prefill(
      model=model.module,
      params=params,
      input=text,
      last_state=None,
      cache_length=cache_length,
      max_out_length=new_tokens,
      pad_length=padded.shape[1],
      rng=jax.random.key(0),
      sharding=None,
    )

  @language.intercept_modules()
  def decode(state):
    return loop.sample(
      params=params, init_state=state, max_new_tokens=jnp.asarray(new_tokens)
    )

  def facts(state: Any) -> dict[str, Any]:
    return {
      'tokens': len(prompts) * int(state.step),
      'blocks': int(state.step),
      'first': np.asarray(state.predicted_tokens[0]),
    }

  return measuring.two_part_entrant(
    {'arm': 'gemma', 'gamma': 0}, prefill, decode, facts
  )


def lower_bound(
  pair: Pair, batch: int, gamma: int, blocks: int
) -> measuring.Entrant:
  """Makes an entrant of the forward passes of strict decoding."""
  sides = [x for x in (pair.verifier, pair.drafter) if x is not None]
  models, params = [x.model for x in sides], [x.params for x in sides]

  @functools.partial(jax.jit, donate_argnums=0)
  def decode(state, params):
    row_block = functools.partial(block, models, gamma, pair.cache_length)
    rows = jax.vmap(row_block, (None, 0, None))
    return jax.lax.fori_loop(0, blocks, lambda i, s: rows(i, s, params), state)

  def prefill():
    caches = [x.model.init_cache(x.params, pair.cache_length) for x in sides]
    repeated = jax.tree.map(lambda x: jnp.stack([x] * batch), caches)
    return repeated, jnp.full((batch,), 5, jnp.int32)

  return measuring.two_part_entrant(
    {'arm': 'floor', 'gamma': gamma, 'blocks': blocks},
    prefill,
    lambda state: decode(state, params),
    # Read once a block, if nothing is drafted.
    lambda state: {'bytes': memory.num_bytes((state, params))},
  )


def block(
  models: Sequence[language.LanguageModel],
  gamma: int,
  cache_length: int,
  index: jax.Array,
  state: Any,
  params: Sequence[Any],
) -> Any:
  """Runs the forward passes of one block of one row."""
  (verifier_cache, *drafter_cache), token = state
  start = index % (cache_length // (gamma + 1)) * (gamma + 1)

  def read(model, params, cache, tokens, at):
    cache = model.rewind(cache, at)
    logits, _, cache = decoding.read_hidden(model, params, cache, tokens, at)
    # The next token depends on all logits, so that no pass is removed.
    return cache, processing.argmax_lowest_id(logits.sum(0))

  # Passes of the verifier alone read any tokens.
  tokens = jnp.repeat(token, gamma + 1)
  if gamma and drafter_cache:
    # Drafters do not scatter logits to the whole vocabulary.
    drafter_params, _ = models[1].split_vocab_ids(params[1])
    draft = functools.partial(read, models[1], drafter_params)
    # Strict decoding does not read its last draft, and catches up here.
    pair, first = jnp.stack([token, token]), jnp.maximum(start - 1, 0)
    cache, second = draft(*drafter_cache, pair, first)

    def step(carry, j):
      cache, last = draft(carry[0], carry[1][None], start + j)
      return (cache, last), last

    steps = jnp.arange(1, gamma)
    (cache, _), rest = jax.lax.scan(step, (cache, second), steps)
    drafter_cache = [cache]
    tokens = jnp.concatenate([jnp.stack([token, second]), rest])
  verifier_cache, token = read(
    models[0], params[0], verifier_cache, tokens, start
  )
  return [verifier_cache, *drafter_cache], token


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], list[dict[str, Any]]]]]:
  """Yields each pair and batch size."""
  for rate in config.acceptances:
    if not 0 < rate <= 1:
      raise ValueError(f'acceptances: must be above 0, up to 1, got {rate}.')
  for spec in config.pairs:
    load = functools.cache(functools.partial(_load, config, spec))
    for batch in config.batch_sizes:
      key = {'pair': spec.name, 'batch': batch}
      yield key, functools.partial(_measure, config, load, batch)


def _measure(
  config: ConfigDict, load: Callable[[], Pair], batch: int
) -> list[dict[str, Any]]:
  """Times the entrants of a pair at a batch size, after compiling all."""
  pair = load()
  loop = functools.partial(project_loop, pair, batch)
  sizes = pair.new_tokens, pair.cache_length
  speed, token_v3 = methods.METHODS['speed'], methods.METHODS['token_v3']
  rates, leniences = [speed.strict], config.leniences
  if pair.verifier.tokenizer is None:
    speed, token_v3 = force_acceptance(speed), force_acceptance(token_v3)
    rates = leniences = config.acceptances
  median_rate = rates[len(rates) // 2]
  participants, clock = [], measuring.CompileClock()

  def enter(entrant: measuring.Entrant) -> dict[str, Any]:
    before, facts = clock.seconds, entrant.run()
    fields = entrant.fields | {'compile_s': clock.seconds - before}
    participants.append(entrant._replace(fields=fields))
    return facts

  if config.get('gemma', True):
    enter(gemma_loop(pair.verifier, pair.prompts[:batch], *sizes))
  enter(loop(methods.METHODS['verifier_only'], 0, 0.0, 'alone'))
  enter(lower_bound(pair, batch, 0, pair.new_tokens))
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [median_rate]:
      blocks = enter(loop(speed, gamma, rate, 'strict'))['blocks']
      if rate == median_rate:
        # The bound runs as many blocks as the strict entrant.
        enter(lower_bound(pair, batch, gamma, blocks))
  for lenience in leniences:
    enter(loop(token_v3, config.gamma, lenience, 'token_v3'))
  if curve := config.get('curve'):
    pair = pair._replace(prompts=pair.prompts[:batch] * len(curve))
    rates = np.repeat(curve, batch)
    loop = functools.partial(project_loop, pair, len(rates))
    enter(loop(token_v3, config.gamma, rates, 'curve'))
  name = f'{pair.name}, batch {batch}'
  timed = measuring.race(participants, pair.repeats, name)
  # Each compiled loop takes mapped memory, which is limited per process.
  jax.clear_caches()
  return timed


def table(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """Derives medians and ratios of the entrants."""
  rows, fields = [], ('pair', 'batch', 'arm', 'gamma', 'lenience', 'acceptance')
  group = lambda x: (x.get('pair'), x.get('batch'))  # noqa: E731
  key = operator.itemgetter('gamma', 'blocks')
  floor_s = {
    (*group(x), *key(x)): median(x['decode_s'])
    for x in figures
    if x['arm'] == 'floor'
  }
  speeds = {
    (*group(x), x['arm']): x['tokens'] / median(x['decode_s'])
    for x in figures
    if x['arm'] in ('gemma', 'alone')
  }
  for row in figures:
    decode_s = median(row['decode_s'])
    out = {name: row.get(name) for name in fields} | {
      'compile s': row['compile_s'],
      'prefill ms': 1e3 * median(row['prefill_s']),
      'ms/block': 1e3 * decode_s / row['blocks'],
    }
    if 'tokens' in row:
      out['tokens/s'] = row['tokens'] / decode_s
      for arm in ('gemma', 'alone'):
        if speed := speeds.get((*group(row), arm)):
          out[f'x {arm}'] = out['tokens/s'] / speed
    # Only loops with the same number of blocks are comparable.
    passes_s = floor_s.get((*group(row), *key(row)))
    if row['arm'] in ('alone', 'strict') and passes_s:
      out['x floor'] = decode_s / passes_s
    if row['arm'] == 'curve':
      # The entrant before it.
      out['x token_v3'] = out['ms/block'] / rows[-1]['ms/block']
    rows.append(out)
  return rows
