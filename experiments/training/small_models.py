"""Training of models on generated tasks, from scratch or from a model."""

import itertools
import pathlib
import random
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from cascades.config import DecodingConfig
from cascades.models import (
  checkpoints,
  language,
  tokenizers,
)
from experiments import cli
from experiments.tasks import TASKS
from experiments.tasks.task import split_of
from experiments.training import (
  cards,
  tokenizer_training,
  training_loop,
)


def train_tokenizer(config: ConfigDict) -> tokenizers.Tokenizer:
  """Trains a tokenizer on problems of each task, in all phrasing styles."""
  texts = []
  for name in sorted(config.mixture):
    stream = problem_stream({name: 1}, str(config.seed), 'any')
    first = itertools.islice(stream, config.tokenizer_examples)
    texts.extend(prompt + reference for prompt, reference in first)
  return tokenizer_training.train(texts, config.vocab_size)


def problem_stream(
  mixture: Mapping[str, float], seed: str, phrasing_style: str = 'plain'
) -> Iterator[tuple[str, str]]:
  """Yields an endless mixture of training pairs (prompt, reference)."""
  for name in mixture:
    if name not in TASKS or not TASKS[name].problem:
      generated = [n for n, task in TASKS.items() if task.problem]
      raise ValueError(
        f'mixture: must be tasks that generate problems'
        f' ({", ".join(generated)}), got {name!r}.'
      )
  rng = random.Random(seed)
  names, weights = zip(*sorted(mixture.items()), strict=True)
  streams = {name: TASKS[name].problems(seed, phrasing_style) for name in names}
  while True:
    stream = streams[rng.choices(names, weights)[0]]
    key, prompt, reference = next(stream)
    if split_of(key) == 'train':
      yield prompt, reference


def make_batch(
  config: ConfigDict,
  tokenizer: tokenizers.Tokenizer,
  rows: int,
  step: int,
  *,
  phrasing_style: str = 'plain',
) -> dict[str, np.ndarray]:
  """Packs problems into rows, as a function of the seed and the step alone.

  Each problem goes to the first row with room for it; the first problem that
  fits in no row ends the batch.
  """
  length = config.row_length
  batch = {
    name: np.zeros((rows, length), np.int32)
    for name in ('tokens', 'targets', 'weights', 'segments', 'positions')
  }
  lengths, counts = [0] * rows, [0] * rows
  stream = problem_stream(
    config.mixture, f'{config.seed}/{step}', phrasing_style
  )
  for prompt, reference in stream:
    prompt = tokenizer.encode(prompt, add_bos=True)
    answer = [*tokenizer.encode(reference), tokenizers.EOS]
    ids = prompt + answer
    n = len(ids) - 1
    fits = (r for r in range(rows) if lengths[r] + n <= length)
    row = next(fits, None)
    if row is None:
      if not any(lengths):
        raise ValueError(
          f'row_length: must be at least {n} for a problem, got {length}.'
        )
      return batch
    span = np.s_[row, lengths[row] : lengths[row] + n]
    lengths[row] += n
    counts[row] += 1
    batch['tokens'][span] = ids[:-1]
    batch['targets'][span] = ids[1:]
    batch['weights'][span] = np.arange(n) >= len(prompt) - 1
    batch['segments'][span] = counts[row]
    batch['positions'][span] = np.arange(n)


def loss_fn(params, model: language.LanguageModel, batch):
  """Computes nats per answer token, and `accuracy`, on a `make_batch`."""
  segments = batch['segments']
  is_same = segments[:, :, None] == segments[:, None, :]
  causal = jnp.tril(jnp.ones(is_same.shape[-2:], bool))

  # A native batch is correct here: rows share an end index only in a cache.
  logits = model.module.apply(
    {'params': params},
    batch['tokens'],
    positions=batch['positions'],
    attention_mask=is_same & causal,
  ).logits.astype(jnp.float32)
  weights = batch['weights'] / batch['weights'].sum()
  nats = optax.softmax_cross_entropy_with_integer_labels(
    logits, batch['targets']
  )
  is_right = jnp.argmax(logits, -1) == batch['targets']
  return (nats * weights).sum(), {'accuracy': (is_right * weights).sum()}


# Prompts decoded at a time; affects only memory.
_PROMPTS = 100


def begin(config: ConfigDict, name: str) -> checkpoints.Checkpoint:
  """Returns the model before its training."""
  spec = config.models[name]
  if ('init' in spec) == ('config' in spec):
    raise ValueError(
      f'models.{name}: exactly one of init (a model to continue) and config'
      ' (the shape of a new model) must be given.'
    )
  if 'init' in spec:
    return checkpoints.load_model(spec.init, 'float32').unpack()
  model = language.from_config(spec.config.to_dict())
  params = jax.jit(model.init_params)(jax.random.key(config.seed))
  cli.say('training the tokenizer')
  return checkpoints.Checkpoint(model, params, train_tokenizer(config))


def train(config: ConfigDict, workdir: pathlib.Path, name: str) -> pathlib.Path:
  """Trains a model, resuming from its last checkpoint if there is one."""
  spec, start = config.models[name], begin(config, name)
  phrasing_style = spec.get('phrasing_style', 'plain')
  model, params, tokenizer = start
  # Refuses unsupported families before the training.
  checkpoints.make_config(model, params, tokenizer.stops)
  optimizer = training_loop.make_optimizer(spec.steps, spec.learning_rate)

  def batch(step):
    rows = make_batch(
      config, tokenizer, spec.rows, step, phrasing_style=phrasing_style
    )
    return [rows]

  params = training_loop.fit(
    config,
    workdir,
    params,
    optimizer,
    loss_fn=lambda params, batch: loss_fn(params, model, batch),
    batch=batch,
    name=name,
    steps=spec.steps,
  )
  folder = workdir / name.replace('_', '-')
  trained = start._replace(params=params)
  checkpoints.save_model(folder, trained, stored=spec.get('stored'))
  return folder


def evaluate(
  folder: pathlib.Path, config: ConfigDict
) -> dict[str, dict[str, float]]:
  """Scores greedy answers of a model to held-out problems."""
  from cascades.sampler import sampler

  model = checkpoints.load_model(folder).unpack()
  greedy_sampler = sampler.Sampler(
    model, config=DecodingConfig(gamma=0, temperature=0.0, batch_size=_PROMPTS)
  )
  figures = {}
  for task in (TASKS[name] for name in config.eval_tasks):
    rows = task.load(split='test', num_examples=config.eval_examples)
    examples = list(rows)
    answers = greedy_sampler.sample(
      [e.prompt for e in examples], max_new_tokens=task.max_new_tokens
    )
    scores = [
      task.score(answer.text, example.reference)
      for answer, example in zip(answers, examples, strict=True)
    ]
    figures[task.name] = {
      name: float(np.mean([s[name] for s in scores])) for name in scores[0]
    }
  return figures


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, dict[str, float]],
  command: str,
  name: str,
) -> None:
  """Writes the model card of a model."""
  spec = config.models[name]
  start = 'A small Gemma 3 transformer, trained from scratch'
  if 'init' in spec:
    start = f'`{spec.init}`, trained further'
  params = checkpoints.load_model(folder).unpack().params
  size = sum(x.size for x in jax.tree.leaves(params))
  fields = config.to_dict() | {'models': {name: spec.to_dict()}}
  cards.write(
    folder,
    ConfigDict(fields),
    command,
    figures,
    intro=(
      f'{start} by the project that ships it, so that speculative cascades can'
      ' be tried on a laptop without a download. It answers the prompts of'
      ' `experiments.tasks` that the mixture below names, and no others; no'
      f' held-out problem was trained on. {size:,} parameters. For experiments'
      ' only.'
    ),
    use=f"cascades.load_model('{folder.name}')",
  )
