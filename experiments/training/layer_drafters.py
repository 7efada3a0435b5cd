"""Training of drafters for verifiers that have none.

A drafter starts as some of the verifier's layers, between the verifier's
embedding table and final norm, and drafts only tokens that are frequent in
answers (see `LanguageModel.restrict_vocab`). It is distilled at positions of
answers, of the user or of the verifier: first by the forward KL divergence
sum p log p/q, then by -log sum min(p, q), the acceptance itself (LK loss, arXiv
2602.23881). p is the verifier's distribution over the drafted vocabulary.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from cascades import files
from cascades.contrib import cpu
from cascades.models import (
  checkpoints,
  config_json,
  language,
  param_mapping,
  tensor_files,
)
from experiments.training import distillation_data, training_loop


def begin(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Returns the drafter before its training: layers of the verifier."""
  model, params, tokenizer = verifier
  c = model.module.config
  layers, types = tuple(config.layers), c.attention_types
  is_global = [i for i, kind in enumerate(types) if kind.name == 'GLOBAL']
  if {*layers} - {*range(c.num_layers)} or not {*layers} & {*is_global}:
    raise ValueError(
      f'layers: must be of 0 to {c.num_layers - 1}, and include one with global'
      f' attention ({", ".join(map(str, is_global))}), got {layers}.'
    )
  # Refuses models whose layers cannot run alone.
  model.first_layers(1)
  attention_types = tuple(types[i] for i in layers)
  module_config = dataclasses.replace(c, attention_types=attention_types)
  module = dataclasses.replace(model.module, config=module_config)
  layer_params = {
    f'layer_{i}': params[f'layer_{j}'] for i, j in enumerate(layers)
  }
  shared = {name: params[name] for name in ('embedder', 'final_norm')}
  return checkpoints.Checkpoint(
    dataclasses.replace(model, module=module), layer_params | shared, tokenizer
  )


def loss_fn(
  params: Any,
  model: language.LanguageModel,
  inputs: tuple[Any, Float[Array, 'n D'], distillation_data.Rows, Any],
  temperatures: tuple[float, ...] = (1.0,),
) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
  """Computes the loss and the figures of the log."""
  embedder, table, (tokens, positions, mask, hidden), by_acceptance = inputs
  all_params = distillation_data.cast(table.dtype, params)
  all_params |= {'embedder': embedder}
  own_hidden = distillation_data.hidden_at(model, all_params, tokens, positions)
  p_logits, q_logits = (
    distillation_data.draft_logits(model, x, table)
    for x in (hidden, own_hidden)
  )
  log_p, log_q = jax.nn.log_softmax(p_logits), jax.nn.log_softmax(q_logits)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  acceptance = jnp.minimum(p, q).sum(-1)

  def mean(values):
    return jnp.where(mask, values, 0).sum() / jnp.maximum(1, mask.sum())

  divergence = mean((p * (log_p - log_q)).sum(-1))
  agree = mean(p_logits.argmax(-1) == q_logits.argmax(-1))

  def acceptance_loss(temperature):
    both = (jax.nn.log_softmax(x / temperature) for x in (p_logits, q_logits))
    return -jax.nn.logsumexp(jnp.minimum(*both), -1)

  rejection = sum(map(acceptance_loss, temperatures)) / len(temperatures)
  loss = jnp.where(by_acceptance, mean(rejection), divergence)
  return loss, dict(kl=divergence, kept=mean(acceptance), agree=agree)


def train(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
  """Trains a drafter, resuming from its last checkpoint if there is one."""
  checkpoints.check_dtype(config.stored, option='stored')
  verifier = checkpoints.load_model(config.verifier, 'float32').unpack()
  start = begin(config, verifier)
  rows, draft_vocab_ids = distillation_data.prepare(config, verifier, workdir)
  embedder = start.params['embedder']
  cast_embedder = distillation_data.cast(config.dtype, embedder)
  draft_table = cast_embedder['input_embedding'][draft_vocab_ids]

  def loss(params, *inputs):
    temperatures = tuple(config.sharpened)
    return loss_fn(params, start.model, inputs, temperatures)

  def batch(step, rows):
    by_acceptance = np.bool_(step >= config.kl_fraction * config.steps)
    return cast_embedder, draft_table, rows, by_acceptance

  schedule = optax.warmup_cosine_decay_schedule(
    0.0, config.learning_rate, min(100, config.steps // 10), config.steps
  )
  trained = training_loop.fit(
    config,
    workdir,
    {k: v for k, v in start.params.items() if k != 'embedder'},
    optax.chain(
      optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)
    ),
    rows,
    loss_fn=loss,
    batch=batch,
  )
  folder = workdir / config.name
  save(
    folder,
    start._replace(params=trained | {'embedder': embedder}),
    draft_vocab_ids,
    verifier=config.verifier,
    stored=config.stored,
  )
  return folder


def save(
  folder: str | pathlib.Path,
  checkpoint: checkpoints.Checkpoint,
  draft_vocab_ids: np.ndarray,
  *,
  verifier: str,
  stored: str | None = None,
) -> None:
  """Writes a model without its embedding table; see `cpu.stored`."""
  model, params, _ = checkpoint
  folder = pathlib.Path(folder)
  config = checkpoints.make_config(model, params, (1,))
  tensors = {cpu.stored.VOCABULARY: np.asarray(draft_vocab_ids, np.int32)}
  resolved = config_json.read(config)
  for name, x in param_mapping.tensors(params, resolved, model.gate_by_rows):
    if name == param_mapping.TABLE_TENSOR:
      continue
    if stored == 'int8' and x.ndim == 2:
      x, scales = cpu.int8.round_rows(x.astype(np.float32))
      tensors[name + cpu.stored.SCALE] = scales[:, None]
    elif stored and stored != 'int8':
      x = x.astype(jnp.dtype(stored))
    tensors[name] = x
  table = params['embedder']['input_embedding']
  owner = dict(
    verifier=verifier, checksum=cpu.stored.checksum(model.vocab_size, table)
  )
  with files.replace_files(folder) as part:
    tensor_files.save_tensors(part / 'model.safetensors', tensors)
    tensor_files.write_json(part / 'config.json', config)
    tensor_files.write_json(part / language.OWNER_FILE, owner)
