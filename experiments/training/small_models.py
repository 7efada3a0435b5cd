"""Training models on the bundled tasks, from scratch or from another model."""

import itertools
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from cascades.config import DecodingConfig
from cascades.models import checkpoints, huggingface, language, tokenizers
from experiments import records
from experiments.tasks import GENERATED, TASKS
from experiments.tasks.task import split_of
from experiments.training import (
  acceptance_eval,
  tokenizer_training,
  training_loop,
)


def train_tokenizer(config: ConfigDict) -> tokenizers.Tokenizer:
  """A tokenizer of each task's first training problems, in every phrasing."""
  texts = []
  for name in sorted(config.mixture):
    stream = problem_stream({name: 1}, str(config.seed), 'any')
    first = itertools.islice(stream, config.tokenizer_examples)
    texts.extend(prompt + reference for prompt, reference in first)
  return tokenizer_training.train(texts, config.vocab_size)


def problem_stream(
  mixture: Mapping[str, float], seed: str, phrasing_style: str = 'plain'
) -> Iterator[tuple[str, str]]:
  """Endless training (prompt, reference) pairs, tasks mixed by share.

  Args:
    mixture: Shares of the problems, by task.
    seed: Of the problems and of their order.
    phrasing_style: Words of the references; one of `phrasing.PHRASING_STYLES`.

  Raises:
    ValueError: Problems of one of the tasks are not made up.
  """
  for name in mixture:
    if name not in GENERATED:
      raise ValueError(
        f'mixture: {name} is no task to train on; there are'
        f' {", ".join(GENERATED)}.'
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
  phrasing_style: str = 'plain',
) -> dict[str, np.ndarray]:
  """Rows of packed problems: a function of the seed and the step alone.

  Each problem goes to the first row with room for it; the batch is closed by
  the first one that fits nowhere.

  Args:
    config: Fields of a training, such as those of configs/train_tiny.py.
    tokenizer: The model's.
    rows: How many rows.
    step: Number of the batch.
    phrasing_style: Words of the references; one of `phrasing.PHRASING_STYLES`.

  Returns:
    Arrays [rows, row_length]: `tokens`; `targets`, the next tokens;
    `weights`, 1 where the target belongs to an answer; `segments`, the number
    of the problem in the row (0 is padding); `positions` within it.
  """
  length = config.row_length
  batch = {
    name: np.zeros((rows, length), np.int32)
    for name in ('tokens', 'targets', 'weights', 'segments', 'positions')
  }
  used, count = [0] * rows, [0] * rows
  stream = problem_stream(
    config.mixture, f'{config.seed}/{step}', phrasing_style
  )
  for prompt, reference in stream:
    prompt = tokenizer.encode(prompt, add_bos=True)
    answer = [*tokenizer.encode(reference), tokenizers.EOS]
    ids = prompt + answer
    n = len(ids) - 1
    fits = (r for r in range(rows) if used[r] + n <= length)
    row = next(fits, None)
    if row is None:
      if not any(used):
        raise ValueError(
          f'row_length: {length} is too short for a problem of {n} tokens.'
        )
      return batch
    span = np.s_[row, used[row] : used[row] + n]
    used[row] += n
    count[row] += 1
    batch['tokens'][span] = ids[:-1]
    batch['targets'][span] = ids[1:]
    batch['weights'][span] = np.arange(n) >= len(prompt) - 1
    batch['segments'][span] = count[row]
    batch['positions'][span] = np.arange(n)


def loss_fn(params, model: language.LanguageModel, batch):
  """Mean cross entropy per answer token, in nats; and token `accuracy`."""
  segments = batch['segments']
  same = segments[:, :, None] == segments[:, None, :]
  causal = jnp.tril(jnp.ones(same.shape[-2:], bool))

  # The module's own batch is right here: without a cache there is no end
  # index to share.
  logits = model.module.apply(
    {'params': params},
    batch['tokens'],
    positions=batch['positions'],
    attention_mask=same & causal,
  ).logits.astype(jnp.float32)
  weights = batch['weights'] / batch['weights'].sum()
  nats = optax.softmax_cross_entropy_with_integer_labels(
    logits, batch['targets']
  )
  right = jnp.argmax(logits, -1) == batch['targets']
  return (nats * weights).sum(), {'accuracy': (right * weights).sum()}


# Prompts decoded at a time; only a matter of memory.
_PROMPTS = 100


def begin(config: ConfigDict, name: str) -> checkpoints.Checkpoint:
  """What a training begins with.

  Args:
    config: Fields of a training, such as those of configs/train_tiny.py.
    name: Key of `config.models`. Its `init` is the name or the folder of the
      model to go on from, whose shape and tokenizer are kept; or its `config`
      is the shape of one with random parameters and a tokenizer of its own.

  Returns:
    The model, float32, with parameters in gemma's order.

  Raises:
    ValueError: There is no such model, or there are both fields or neither.
  """
  spec = config.models[name]
  if ('init' in spec) == ('config' in spec):
    raise ValueError(
      f'models.{name}: give either init, a model to go on from, or config, the'
      ' shape of a new one.'
    )
  if 'init' in spec:
    return checkpoints.load_model(spec.init, 'float32').unpack()
  model = language.from_config(spec.config.to_dict())
  params = jax.jit(model.init_params)(jax.random.key(config.seed))
  return checkpoints.Checkpoint(model, params, train_tokenizer(config))


def train_model(
  config: ConfigDict,
  name: str,
  start: checkpoints.Checkpoint,
  workdir: pathlib.Path,
) -> pathlib.Path:
  """Trains one model, from its last checkpoint if there is one.

  Args:
    config: Fields of a training, such as those of configs/train_tiny.py.
    name: Key of `config.models`.
    start: The model that it begins with, from `begin`.
    workdir: Holds checkpoints and the log; the model is written beside them.

  Returns:
    The model's folder, in Hugging Face layout.

  Raises:
    ValueError: That layout has no place for a model of this family.
  """
  spec = config.models[name]
  phrasing_style = spec.get('phrasing_style', 'plain')
  model, params, tokenizer = start
  # Before the training, so that it is not in vain.
  huggingface.make_config(model, params, tokenizer.stops)
  optimizer = training_loop.make_optimizer(spec.steps, spec.learning_rate)

  params = training_loop.fit(
    *(config, name, spec.steps, workdir, params, optimizer),
    lambda params, batch: loss_fn(params, model, batch),
    lambda step: [
      make_batch(config, tokenizer, spec.rows, step, phrasing_style)
    ],
  )
  out = workdir / name.replace('_', '-')
  trained = start._replace(params=params)
  checkpoints.save_model(out, trained, stored=spec.get('stored'))
  return out


def evaluate(
  folder: pathlib.Path,
  tasks: Sequence[str],
  num_examples: int,
) -> dict[str, dict[str, float]]:
  """Held-out scores of a model decoding alone, greedily.

  Args:
    folder: In Hugging Face layout.
    tasks: Names of them.
    num_examples: Per task.

  Returns:
    The mean of every score, by task.
  """
  from cascades.sampler import sampler

  model = checkpoints.load_folder(folder)
  alone = sampler.Sampler(
    model,
    config=DecodingConfig(
      gamma=0,
      temperature=0.0,
      batch_size=_PROMPTS,
    ),
  )
  figures = {}
  for task in (TASKS[name] for name in tasks):
    examples = list(task.load(split='test', num_examples=num_examples))
    answers = alone.sample(
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


_CARD = """---
license: apache-2.0
language: en
library_name: cascades
---

# {name}

{intro}

- Shape: {num_hidden_layers} layers ({kinds}), {hidden_size} wide,
  {num_attention_heads} heads of {head_dim} ({num_key_value_heads} key-value),
  feed-forward {intermediate_size}, sliding window {sliding_window},
  vocabulary {vocab_size}; {parameters:,} parameters, float32,
  stored in {stored}.
- Data: {data}, made from seed {seed} by the modules of
  `experiments.tasks` with these names; answers are in the {phrasing_style}
  style of `experiments/tasks/phrasing.py`. A problem's own numbers decide
  by a hash whether it is training, validation or test, so no held-out problem
  was ever trained on.
- Training: {steps} steps of {tokens:,} tokens, cross entropy on answers only;
  Muon for matrices, Adam for the rest.
- Retrain: `{command}`, then copy the folder here.

Held out, greedy, {eval_examples} problems a task:

{table}

At batch 1 on a CPU, {context} tokens of context: {token_ms:.3f} ms a token
({device}, jax {jax}).

Use: `cascades.load_model('{name}')`. Not for anything but experiments.
"""


_SCRATCH = """\
A small Gemma 3 transformer, trained from scratch by the project that ships
it, so that speculative cascades can be tried on a laptop with nothing to
download. It answers the kinds of prompts named below and knows nothing else."""
_TUNED = """\
`{init}`, trained further on the data named below. What it knew before, it may
have forgotten: the figures tell."""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  name: str,
  command: str,
  figures: dict[str, dict[str, float]],
  token_s: float,
  context: int,
) -> None:
  """Writes a model card with these figures beside a model.

  Args:
    folder: The model's.
    config: Fields that it was trained with.
    name: Key of `config.models`.
    command: What trains it.
    figures: Held-out scores, by task; see `evaluate`.
    token_s: Seconds a token takes alone.
    context: Tokens in the cache while that was measured.
  """
  spec = config.models[name]
  model, params, tokenizer = checkpoints.load_folder(folder)
  c = huggingface.make_config(model, params, tokenizer.stops)
  whole = sum(config.mixture.values())
  shares = [
    f'`{task}` ({100 * share / whole:g}%)'
    for task, share in config.mixture.items()
    if share
  ]
  text = _CARD.format(
    **c,
    name=folder.name,
    intro=_TUNED.format(init=spec.init) if 'init' in spec else _SCRATCH,
    data=', '.join(shares),
    kinds=', '.join(k.split('_')[0] for k in c['layer_types']),
    parameters=sum(x.size for x in jax.tree.leaves(params)),
    stored=spec.get('stored') or 'float32',
    seed=config.seed,
    phrasing_style=spec.get('phrasing_style', 'plain'),
    steps=spec.steps,
    tokens=spec.rows * config.row_length,
    command=command,
    eval_examples=config.eval_examples,
    table=acceptance_eval.by_task(figures),
    token_ms=1e3 * token_s,
    context=context,
    device=jax.devices()[0].device_kind,
    jax=jax.__version__,
  )
  records.write_text(folder / 'README.md', text)
