"""Two models and what they are asked: bundled ones, or shapes.

A pair of bundled models solves word problems. One that is given by shapes has
random weights, which are made on the device, and reads random tokens.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cascades import decoding, drafters, load_model, methods
from cascades.methods import processing
from cascades.models import checkpoints, language, tokenizers
from cascades.sampler import batching
from experiments import tasks
from experiments.benchmarks import stopwatch


@dataclasses.dataclass
class Pair:
  """Two models and what they are asked.

  Attributes:
    name: The config's word for the pair, which its figures have too.
    verifier: The larger model; packed on a CPU, as `load_model` gives it.
    drafter: The smaller model, packed where the verifier is.
    prompts: Token ids [P], one array for each row of the largest batch.
    new_tokens: How many tokens every row of every arm writes.
    repeats: How many turns of every arm count.
    random: Whether the weights are random.
    compiled: By a key that names shapes and static arguments, the seconds that
      a function took to compile, and the function: arms share them.
  """

  name: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint
  prompts: list[np.ndarray]
  new_tokens: int
  repeats: int
  random: bool
  compiled: dict[Any, tuple[float, jax.stages.Compiled]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def params(self) -> decoding.Params:
    """The weights of both models."""
    return decoding.Params(self.verifier.params, self.drafter.params)

  def room(self, drafts: int = 1) -> int:
    """Cache slots of every arm, gemma's own included.

    Args:
      drafts: How many drafts of a block lie side by side.
    """
    longest = max(map(len, self.prompts))
    return batching.bucket(longest + self.new_tokens + 16 * drafts, 64)

  def compile(
    self, key: Any, jitted: Any, *args: Any, **keywords: Any
  ) -> tuple[float, jax.stages.Compiled]:
    """A function compiled ahead of time, unless it was already.

    Args:
      key: What sets it apart from all others that this pair compiles.
      jitted: What `jax.jit` made of it.
      *args: Arrays that it takes.
      **keywords: Further arguments by name, static ones among them.

    Returns:
      Seconds that it took when it was compiled, and what can be called.
    """
    if key not in self.compiled:
      self.compiled[key] = stopwatch.compiled(jitted, *args, **keywords)
    return self.compiled[key]


def load(config: ConfigDict, spec: ConfigDict) -> Pair:
  """Makes a pair of what a config says of it.

  Args:
    config: Says what all pairs are asked; the largest of its `batch_sizes` is
      how many prompts there are.
    spec: The pair's `name`, `verifier` and `drafter`: bundled names, or fields
      of a config.json. Large ones may have `new_tokens` and `repeats` of their
      own.

  Raises:
    ValueError: The bundled verifier's answers are too short.
  """
  new_tokens = spec.get('new_tokens', config.new_tokens)
  sizes = new_tokens, spec.get('repeats', config.repeats)
  rows = max(config.batch_sizes)
  if isinstance(spec.verifier, str):
    models = load_model(spec.verifier), load_model(spec.drafter)
    return Pair(
      spec.name, *models, _problems(models[0], rows, new_tokens), *sizes, False
    )
  dtype = jnp.dtype(config.dtype)
  models = [
    _random(dict(shape), dtype, config.seed + i)
    for i, shape in enumerate((spec.verifier, spec.drafter))
  ]
  rng = np.random.default_rng(config.seed)
  size = rows, config.prompt_tokens
  # Past the ids of tokens that gemma's sampler forbids or stops at.
  prompts = list(rng.integers(300, models[0].model.vocab_size, size))
  return Pair(spec.name, *models, prompts, *sizes, True)


def _random(
  shape: dict[str, Any], dtype: jnp.dtype, seed: int
) -> checkpoints.Checkpoint:
  """A model of a shape; its weights are made on the device."""
  model = language.from_config(shape, dtype)
  params = jax.jit(model.init_params)(jax.random.key(seed))
  checkpoint = checkpoints.Checkpoint(model, params, None)
  return checkpoint.packed() if jax.default_backend() == 'cpu' else checkpoint


def _problems(
  verifier: checkpoints.Checkpoint, rows: int, new_tokens: int
) -> list[np.ndarray]:
  """Word problems whose answers are long enough for every arm.

  Args:
    verifier: Answers them, greedily.
    rows: How many are wanted.
    new_tokens: How many tokens an answer has to have.

  Raises:
    ValueError: It answers too few at such length.
  """
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


def greedy_engine(
  verifier: checkpoints.Checkpoint,
  drafter: checkpoints.Checkpoint | drafters.Equipped | None,
  method: str | methods.Method,
  gamma: int,
  stops: tuple[int, ...] = (-1,),
) -> batching.Engine:
  """What our loop decodes greedily with.

  Args:
    verifier: Verifies.
    drafter: A model that drafts, or a drafter with what it needs; not looked
      at where gamma is 0.
    method: A method, or its name.
    gamma: How many tokens are drafted per block; 0 for the verifier alone.
    stops: Token ids that end an answer; no token is -1.
  """
  if not gamma:
    drafter = drafters.Equipped(drafters.NoDrafter(), ())
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
