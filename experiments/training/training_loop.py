"""The loop of every training: optimizer, checkpoints and a log.

Every batch is a function of (seed, step): an interrupted run resumes from its
last checkpoint with the same result, and one seed gives one model.
"""

import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from cascades import files
from experiments import cli, records

# Axes of Gemma's matrices by name: those summed over, and the output axes.
_AXES = {
  'q_einsum': (1, (0, 2)),
  'kv_einsum': (2, (1, 3)),
  'qkv_einsum': (2, (1, 3)),
  'attn_vec_einsum': ((0, 1), 2),
  'gating_einsum': (2, 1),
  'linear': (0, 1),
}


def make_optimizer(
  steps: int, learning_rate: float, axes: Mapping[str, tuple] = _AXES
) -> optax.GradientTransformation:
  """Makes an optimizer: Muon for matrices, Adam for the rest, linear decay.

  Muon: https://kellerjordan.github.io/posts/muon/, as in optax.
  """

  def axes_of(path, _):
    numbers = next((axes[p.key] for p in path if p.key in axes), None)
    return numbers and optax.contrib.MuonDimensionNumbers(*numbers)

  def schedule(peak):
    warmup = min(100, steps // 10)
    return optax.join_schedules(
      [
        optax.linear_schedule(0.0, peak, warmup),
        optax.constant_schedule(peak),
        optax.linear_schedule(peak, 0.0, steps - steps // 3),
      ],
      [warmup, steps // 3],
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


def _deciding(config: ConfigDict, name: str) -> dict[str, Any]:
  """Returns the fields of a training that determine the trained model.

  The path of the texts is left out: `distillation_data` hashes their content.
  """
  fields = {
    field: value
    for field, value in config.to_dict().items()
    if not field.startswith(('eval_', 'log_', 'checkpoint_'))
    and field not in ('models', 'text')
  }
  return fields | (config.models[name].to_dict() if 'models' in config else {})


def fit(
  config: ConfigDict,
  workdir: pathlib.Path,
  params: Any,
  optimizer: optax.GradientTransformation,
  *,
  loss_fn: Callable[..., tuple[jax.Array, dict[str, jax.Array]]],
  batch: Callable[[int], Sequence[Any]],
  name: str,
  steps: int,
  validate: Callable[[Any], dict[str, Any]] = lambda params: {},
) -> Any:
  """Minimizes a loss, resuming from the last checkpoint if there is one."""

  @jax.jit
  def update(state, *batch):
    grad = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, figures), grads = grad(state['params'], *batch)
    updates, opt_state = optimizer.update(
      grads, state['opt_state'], state['params']
    )
    params = optax.apply_updates(state['params'], updates)
    return {'params': params, 'opt_state': opt_state}, {'loss': loss} | figures

  state = {'params': params, 'opt_state': jax.jit(optimizer.init)(params)}
  leaves, structure = jax.tree.flatten(state)
  file = workdir / f'checkpoints/{name}.npz'
  saved = np.load(file) if file.exists() else {'step': 0}
  first = int(saved['step'])
  fields = _deciding(config, name)
  records.claim(workdir / f'{name}.json', fields, 'training', bool(first))
  if first:
    # numpy knows no bfloat16, whose bits it keeps.
    arrays = [saved[str(i)].view(x.dtype) for i, x in enumerate(leaves)]
    state = structure.unflatten(arrays)
  with (
    cli.progress(steps, name, initial=first) as bar,
    (workdir / f'{name}.jsonl').open('a') as log,
  ):
    for step in range(first, steps):
      state, figures = update(state, *batch(step))
      done = step + 1
      if done % config.log_every == 0 or done == steps:
        figures |= validate(state['params'])
        figures = {k: np.asarray(v).tolist() for k, v in figures.items()}
        postfix = {k: f'{np.ravel(v)[0]:.4f}' for k, v in figures.items()}
        bar.set_postfix(postfix, refresh=False)
        line = dict(step=done, time=time.time(), **figures)
        print(json.dumps(line), file=log, flush=True)
      if done % config.checkpoint_every == 0 or done == steps:
        arrays = map(np.asarray, jax.tree.leaves(state))
        named = {str(i): x for i, x in enumerate(arrays)}
        with files.replace_file(file) as part:
          np.savez(part, step=done, **named)
      bar.update()
  return state['params']
