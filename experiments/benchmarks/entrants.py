"""Pairs of models with prompts; and their loops: this project's and gemma's.

A pair of bundled models solves word problems. A pair of shapes has random
weights, which are made on the device, and reads random tokens. Such models
never agree, so their method has a forced acceptance (`force_acceptance`).
Both loops are greedy and write equally many tokens after the same prompts.
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
from experiments.benchmarks import gemma_sampler, harness


class Pair(NamedTuple):
  """Two models and their prompts."""

  name: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint
  prompts: list[np.ndarray]
  new_tokens: int
  repeats: int

  @property
  def params(self) -> decoding.Params:
    """Parameters of both models."""
    return decoding.Params(self.verifier.params, self.drafter.params)

  @property
  def cache_length(self) -> int:
    """Cache slots of every entrant, gemma's included."""
    longest = max(map(len, self.prompts))
    return batching.bucket(longest + self.new_tokens + 16, 64)


def load(config: ConfigDict, spec: ConfigDict) -> Pair:
  """Loads or makes a pair."""
  sizes = [spec.get(x, config[x]) for x in ('new_tokens', 'repeats')]
  rows = max(config.batch_sizes)
  if isinstance(spec.verifier, str):
    models = load_model(spec.verifier), load_model(spec.drafter)
    task = tasks.TASKS['word_problems']
    examples = task.load(split='test', seed=config.seed, num_examples=rows)
    encode = functools.partial(models[0].tokenizer.encode, add_bos=True)
    prompts = [
      np.array(encode(example.prompt), np.int32) for example in examples
    ]
    return Pair(spec.name, *models, prompts, *sizes)
  dtype = jnp.dtype(config.dtype)
  models = [
    random_checkpoint(dict(shape), dtype, config.seed + i)
    for i, shape in enumerate((spec.verifier, spec.drafter))
  ]
  rng = np.random.default_rng(config.seed)
  size = rows, config.prompt_tokens
  # Above the ids that gemma's sampler forbids or stops at.
  prompts = list(rng.integers(300, models[0].model.vocab_size, size))
  return Pair(spec.name, *models, prompts, *sizes)


def load_examples(config: ConfigDict, count: int) -> list[tasks.Example]:
  """Loads the first examples of the task of a config."""
  examples = tasks.TASKS[config.task].load(
    split='test',
    path=config.path or None,
    shots=config.shots,
    num_examples=count,
  )
  return list(examples)


def random_checkpoint(
  shape: dict[str, Any], dtype: jnp.dtype, seed: int
) -> checkpoints.Checkpoint:
  """Makes a model with random weights on the device."""
  model = language.from_config(shape, dtype)
  # Not compiled as a whole: arrays of one shape share a program.
  params = model.init_params(jax.random.key(seed))
  checkpoint = checkpoints.Checkpoint(model, params, None)
  return checkpoint.pack() if jax.default_backend() == 'cpu' else checkpoint


def force_acceptance(
  method: methods.Method, law_uses_q: bool
) -> methods.Method:
  """Makes a method that accepts drafts with a fixed probability, its lenience.

  The method computes acceptance and residual of the original at its strict
  lenience, and so has its costs.
  """
  strict = jnp.float32(method.strict)

  def acceptance(d, rate):
    # A compiler cannot remove the term: 0 times nan would be nan.
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


def project_loop(
  pair: Pair,
  batch: int,
  method: methods.Method,
  gamma: int,
  lenience: float,
  name: str,
) -> harness.Entrant:
  """Makes an entrant of this project's loop."""
  drafter = drafters.BoundDrafter(drafters.NoDrafter(), ())
  if gamma:
    model, params, _ = pair.drafter
    drafter = drafters.BoundDrafter(drafters.ModelDrafter(model), params)
  models = decoding.Models(pair.verifier.model, drafter.drafter)
  engine = batching.Engine(
    decoding.StepConfig(models, method, gamma),
    decoding.Params(pair.verifier.params, drafter.params),
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

  fields = {'arm': name, 'gamma': gamma}
  if gamma:
    fields['lenience'] = lenience
  return harness.two_part_entrant(fields, prefill, engine.decode, facts)


def gemma_loop(
  checkpoint: checkpoints.Checkpoint,
  prompts: Sequence[Sequence[int]],
  new_tokens: int,
  cache_length: int,
) -> harness.Entrant:
  """Makes an entrant of gemma's sampler."""
  checkpoint = checkpoint.unpack()
  padded, _ = batching.pad(prompts, max(map(len, prompts)))
  prefill, decode = gemma_sampler.split_sampler(
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

  return harness.two_part_entrant(
    {'arm': 'gemma', 'gamma': 0}, prefill, decode, facts
  )
