"""Trains models on the bundled tasks and writes them in Hugging Face layout.

Every batch is a function of (seed, step), so a run that was stopped goes on
from its last checkpoint as if it had not been, and the same seed gives the
same data.
"""

import itertools
import json
import pathlib
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from absl import app, flags
from ml_collections import config_flags

from cascades import checkpoints, models, tokenizers
from cascades.tasks import TASKS
from cascades.tasks.task import split_of

_CONFIG = config_flags.DEFINE_config_file(
  'config', 'configs/train_tiny.py', 'What to train.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', 'runs/train_tiny', 'Where checkpoints and models go.'
)
_ONLY = flags.DEFINE_string('only', None, 'Train just this model.')


def train_tokenizer(config) -> tokenizers.Tokenizer:
  """A tokenizer of the first training problems of every task."""
  texts = []
  for name in config.mixture:
    load = TASKS[name].load
    examples = load('train', config.seed, config.tokenizer_examples)
    texts.extend(e.prompt + e.reference for e in examples)
  return tokenizers.train(texts, config.vocab_size)


def problem_stream(mixture, seed: str):
  """Endless training (prompt, reference) pairs, tasks mixed by share."""
  rng = random.Random(seed)
  names, weights = zip(*sorted(mixture.items()), strict=True)
  streams = {name: TASKS[name].problems(seed) for name in names}
  while True:
    stream = streams[rng.choices(names, weights)[0]]
    key, prompt, reference = next(stream)
    if split_of(key) == 'train':
      yield prompt, reference


def make_batch(config, tokenizer, rows: int, step: int) -> dict:
  """Rows of packed problems: a function of the seed and the step alone.

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
  stream = problem_stream(config.mixture, f'{config.seed}/{step}')
  for prompt, reference in stream:
    prompt = tokenizer.encode(prompt, add_bos=True)
    answer = [*tokenizer.encode(reference), tokenizers.EOS]
    ids = prompt + answer
    n = len(ids) - 1
    fits = (r for r in range(rows) if used[r] + n <= length)
    row = next(fits, None)
    if row is None:
      return batch
    span = np.s_[row, used[row] : used[row] + n]
    used[row] += n
    count[row] += 1
    batch['tokens'][span] = ids[:-1]
    batch['targets'][span] = ids[1:]
    batch['weights'][span] = np.arange(n) >= len(prompt) - 1
    batch['segments'][span] = count[row]
    batch['positions'][span] = np.arange(n)


def loss_fn(params, model: models.LanguageModel, batch):
  """Mean cross entropy per answer token, in nats; and token accuracy."""
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
  return (nats * weights).sum(), (right * weights).sum()


def make_optimizer(steps: int, learning_rate: float):
  """Muon for matrices, Adam for embeddings and norms; linear decay.

  Muon: https://kellerjordan.github.io/posts/muon/, as in optax.
  """
  numbers = optax.contrib.MuonDimensionNumbers
  axes = {
    'q_einsum': numbers(reduction_axis=1, output_axis=(0, 2)),
    'kv_einsum': numbers(reduction_axis=2, output_axis=(1, 3)),
    'qkv_einsum': numbers(reduction_axis=2, output_axis=(1, 3)),
    'attn_vec_einsum': numbers(reduction_axis=(0, 1), output_axis=2),
    'gating_einsum': numbers(reduction_axis=2, output_axis=1),
    'linear': numbers(reduction_axis=0, output_axis=1),
  }

  def axes_of(path, _):
    names = [p.key for p in path]
    return next((axes[n] for n in names if n in axes), None)

  def schedule(peak):
    warm = min(100, steps // 10)
    return optax.join_schedules(
      [
        optax.linear_schedule(0.0, peak, warm),
        optax.constant_schedule(peak),
        optax.linear_schedule(peak, 0.0, steps - steps // 3),
      ],
      [warm, steps // 3],
    )

  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.contrib.muon(
      schedule(learning_rate),
      adam_learning_rate=schedule(learning_rate / 5),
      muon_weight_dimension_numbers=lambda params: (
        jax.tree_util.tree_map_with_path(axes_of, params)
      ),
    ),
  )


def train_model(config, name: str, tokenizer, workdir: pathlib.Path):
  """Trains one model, from its last checkpoint if there is one."""
  import orbax.checkpoint as ocp

  spec = config.models[name]
  hf_config = spec.config.to_dict()
  model = models.from_config(hf_config)
  optimizer = make_optimizer(spec.steps, spec.learning_rate)

  @jax.jit
  def init():
    params = model.init_params(jax.random.key(config.seed))
    return {'params': params, 'opt_state': optimizer.init(params)}

  @jax.jit
  def update(state, batch):
    grad = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, accuracy), grads = grad(state['params'], model, batch)
    updates, opt_state = optimizer.update(
      grads, state['opt_state'], state['params']
    )
    params = optax.apply_updates(state['params'], updates)
    return {'params': params, 'opt_state': opt_state}, loss, accuracy

  folder = (workdir / 'checkpoints' / name).absolute()
  options = ocp.CheckpointManagerOptions(max_to_keep=2)
  with ocp.CheckpointManager(folder, options=options) as manager:
    first = manager.latest_step() or 0
    state = init()
    if first:
      state = manager.restore(first, args=ocp.args.StandardRestore(state))
    bar = tqdm.trange(first, spec.steps, initial=first, total=spec.steps)
    bar.set_description(name)
    log = (workdir / f'{name}.jsonl').open('a')
    with log:
      for step in bar:
        batch = make_batch(config, tokenizer, spec.rows, step)
        state, loss, accuracy = update(state, batch)
        done = step + 1
        if done % config.log_every == 0 or done == spec.steps:
          line = dict(
            step=done, loss=float(loss), accuracy=float(accuracy)
          )
          bar.set_postfix(loss=f'{loss:.4f}', accuracy=f'{accuracy:.4f}')
          print(json.dumps(line | {'time': time.time()}), file=log, flush=True)
        if done % config.checkpoint_every == 0 or done == spec.steps:
          manager.save(done, args=ocp.args.StandardSave(state))
  checkpoints.save_model(
    workdir / name.replace('_', '-'), hf_config, state['params'], tokenizer
  )


def main(argv):
  del argv
  config = _CONFIG.value
  workdir = pathlib.Path(_WORKDIR.value)
  workdir.mkdir(parents=True, exist_ok=True)
  tokenizer = train_tokenizer(config)
  for name in config.models:
    if _ONLY.value in (None, name):
      train_model(config, name, tokenizer, workdir)


if __name__ == '__main__':
  app.run(main)
