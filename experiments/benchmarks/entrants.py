"""Two models and their prompts; and loops that write text: ours, gemma's own.

A pair of bundled models solves word problems. A pair that is given by shapes
has random weights, which are made on the device, and reads random tokens; such
models agree on nothing, and their method is a `forced` one. Both loops are
greedy, and write as many tokens after the same prompts.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cascades import decoding, drafters, load_model, methods
from cascades.methods import processing
from cascades.models import checkpoints, language
from cascades.sampler import batching
from experiments import tasks
from experiments.benchmarks import harness, own_sampler


class Pair(NamedTuple):
  """Two models and their prompts.

  Attributes:
    name: The config's name for the pair, which its figures have too.
    verifier: The larger model; packed on a CPU, as `load_model` gives it;
      without a tokenizer if its weights are random.
    drafter: The smaller model, packed where the verifier is.
    prompts: Token ids [P], one array for each row of the largest batch.
    new_tokens: How many tokens every row of every entrant writes.
    repeats: How many turns of every entrant count.
  """

  name: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint
  prompts: list[np.ndarray]
  new_tokens: int
  repeats: int

  @property
  def params(self) -> decoding.Params:
    """The weights of both models."""
    return decoding.Params(self.verifier.params, self.drafter.params)

  @property
  def cache_length(self) -> int:
    """Cache slots of every entrant, gemma's own included."""
    longest = max(map(len, self.prompts))
    return batching.bucket(longest + self.new_tokens + 16, 64)


def load(config: ConfigDict, spec: ConfigDict) -> Pair:
  """Makes a pair.

  Args:
    config: Fields of all pairs; there are as many prompts as the largest of
      its `batch_sizes`.
    spec: The pair's `name`, `verifier` and `drafter`: bundled names, or fields
      of a config.json. Large pairs may have their own `new_tokens` and
      `repeats`.
  """
  sizes = [spec.get(x, config[x]) for x in ('new_tokens', 'repeats')]
  rows = max(config.batch_sizes)
  if isinstance(spec.verifier, str):
    models = load_model(spec.verifier), load_model(spec.drafter)
    task = tasks.TASKS['word_problems']
    examples = task.load(split='test', seed=config.seed, num_examples=rows)
    encode = functools.partial(models[0].tokenizer.encode, add_bos=True)
    prompts = [np.array(encode(one.prompt), np.int32) for one in examples]
    return Pair(spec.name, *models, prompts, *sizes)
  dtype = jnp.dtype(config.dtype)
  models = [
    _random(dict(shape), dtype, config.seed + i)
    for i, shape in enumerate((spec.verifier, spec.drafter))
  ]
  rng = np.random.default_rng(config.seed)
  size = rows, config.prompt_tokens
  # Past the ids of tokens that gemma's sampler forbids or stops at.
  prompts = list(rng.integers(300, models[0].model.vocab_size, size))
  return Pair(spec.name, *models, prompts, *sizes)


def _random(
  shape: dict[str, Any], dtype: jnp.dtype, seed: int
) -> checkpoints.Checkpoint:
  """Makes a model of a shape, with its weights on the device."""
  model = language.from_config(shape, dtype)
  params = jax.jit(model.init_params)(jax.random.key(seed))
  checkpoint = checkpoints.Checkpoint(model, params, None)
  return checkpoint.pack() if jax.default_backend() == 'cpu' else checkpoint


def forced(method: methods.Method, law_uses_q: bool) -> methods.Method:
  """Makes a method that keeps every draft with a probability, its lenience.

  It computes acceptance and residual of `method`, at its strict lenience, and
  so costs what `method` costs.

  Args:
    method: Whose costs are wanted.
    law_uses_q: Whether they are the costs of a lenient method, for which the
      drafter's distribution after a whole draft is needed too.
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
  pair: Pair,
  batch: int,
  method: methods.Method,
  gamma: int,
  lenience: float,
  name: str,
) -> harness.Entrant:
  """Decodes with our loop.

  Args:
    pair: Its models decode, and its prompts are read.
    batch: How many of its prompts are read, from the first on.
    method: A method.
    gamma: How many tokens are drafted per block; 0 for the verifier alone.
    lenience: The method's, in every row.
    name: What figures call the entrant.
  """
  drafter = drafters.BoundDrafter(drafters.NoDrafter(), ())
  if gamma:
    model, params, _ = pair.drafter
    drafter = drafters.BoundDrafter(drafters.ModelDrafter(model), params)
  models = decoding.Models(pair.verifier.model, drafter.drafter)
  engine = batching.Engine(
    decoding.StepConfig(models, method, gamma),
    decoding.Params(pair.verifier.params, drafter.params),
    processing.SamplingParams(temperature=np.float32(0)),
    # No token ends an answer; its length does.
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

  fields = {'arm': name, 'gamma': gamma}
  if gamma:
    fields['lenience'] = lenience
  return harness.in_two_parts(fields, prefill, engine.decode, facts)


def gemma(
  checkpoint: checkpoints.Checkpoint,
  prompts: Sequence[Sequence[int]],
  new_tokens: int,
  cache_length: int,
) -> harness.Entrant:
  """Decodes with gemma's own sampler, from token ids on.

  Args:
    checkpoint: Writes.
    prompts: Token ids, all read at once.
    new_tokens: How many tokens every row writes.
    cache_length: Slots of the cache.
  """
  checkpoint = checkpoint.unpack()
  padded, _ = batching.pad(prompts, max(map(len, prompts)))
  prefill, decode = own_sampler.in_two_parts(
    checkpoint.model,
    checkpoint.params,
    padded,
    cache_length=cache_length,
    new_tokens=new_tokens,
  )

  def facts(state: Any) -> dict[str, Any]:
    return {
      'tokens': len(prompts) * int(state.step),
      'blocks': int(state.step),
      'first': np.asarray(state.predicted_tokens[0]),
    }

  return harness.in_two_parts(
    {'arm': 'gemma', 'gamma': 0}, prefill, decode, facts
  )
