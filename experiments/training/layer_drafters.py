"""Training of drafters for verifiers that have none.

A drafter starts as some of the verifier's layers, between the verifier's
embedding table and final norm, and drafts only tokens that are frequent in
answers (see `LanguageModel.restrict_vocab`). It is distilled at positions of
answers, of the user or of the verifier: first by the forward KL divergence
sum p log p/q, then by -log sum min(p, q), the acceptance itself (LK loss, arXiv
2602.23881). p is the verifier's distribution over the drafted vocabulary.
"""

import dataclasses
import json
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from cascades import arguments, drafters, files
from cascades.contrib import cpu
from cascades.models import (
  checkpoints,
  config_json,
  language,
  param_mapping,
  tensor_files,
)
from experiments import records
from experiments.sweeps import costs
from experiments.training import cards, distillation_data, texts, training_loop

# Types that tensors are stored in; None for their own.
_STORED = None, 'bfloat16', 'float32', 'int8'


def begin(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Returns the drafter before its training."""
  if ('init' in config) == ('layers' in config):
    raise ValueError(
      'init: exactly one of init (a drafter to continue) and layers (of the'
      ' verifier, to start from) must be given.'
    )
  if 'init' in config:
    return _trained_before(config.init, verifier)
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


def _trained_before(
  name: str, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Returns an earlier drafter, with the whole table of the verifier."""
  model, params, tokenizer = checkpoints.load_model(name, 'float32').unpack()
  table = params['embedder']['input_embedding']
  verifier_table = verifier.params['embedder']['input_embedding']
  shares_table = language.VOCAB_IDS in params['embedder']
  if (
    not shares_table
    or table.shape != verifier_table.shape
    or (table != verifier_table).any()
  ):
    raise ValueError(
      f'init: {name} does not share the embedding table of the verifier; give'
      ' a drafter that was trained for this verifier.'
    )
  embedder = verifier.params['embedder']
  return checkpoints.Checkpoint(
    model, params | {'embedder': embedder}, tokenizer
  )


class LossInputs(NamedTuple):
  """The inputs of a training step beside the parameters."""

  embedder: Any
  draft_table: Float[Array, 'n D']
  batch: distillation_data.DistillationBatch
  by_acceptance: Any


def loss_fn(
  params: Any,
  model: language.LanguageModel,
  inputs: LossInputs,
  temperatures: tuple[float, ...] = (1.0,),
) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
  """Computes the loss and the figures of the log."""
  table, (tokens, positions, mask, hidden) = inputs.draft_table, inputs.batch
  all_params = distillation_data.cast(table.dtype, params) | {
    'embedder': inputs.embedder
  }
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
  loss = jnp.where(inputs.by_acceptance, mean(rejection), divergence)
  return loss, dict(kl=divergence, kept=mean(acceptance), agree=agree)


def _make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
  """Makes AdamW with warm-up, cosine decay and clipped gradients."""
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(
      optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, min(100, config.steps // 10), config.steps
      ),
      weight_decay=0.01,
    ),
  )


def train(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
  """Trains a drafter, resuming from its last checkpoint if there is one."""
  checkpoints.check_dtype(config.dtype, tensor_files.FLOATS)
  distillation_data.check_rows(config)
  if config.stored not in _STORED:
    raise ValueError(
      f'stored: must be None (unchanged), {" or ".join(_STORED[1:])}, got'
      f' {arguments.quote(config.stored)}.'
    )
  # In gemma's layout, which is faster for long rows.
  verifier = checkpoints.load_model(config.verifier, 'float32').unpack()
  start = begin(config, verifier)
  data = distillation_data.prepare(config, verifier, workdir)
  embedder = start.params['embedder']
  cast_embedder = distillation_data.cast(config.dtype, embedder)
  draft_table = cast_embedder['input_embedding'][data.draft_vocab_ids]
  params = {k: v for k, v in start.params.items() if k != 'embedder'}

  def loss(params, *inputs):
    temperatures = tuple(config.sharpened)
    return loss_fn(params, start.model, LossInputs(*inputs), temperatures)

  def batch(step):
    by_acceptance = np.bool_(step >= config.kl_fraction * config.steps)
    rows = data.train.sample(config, step)
    return LossInputs(cast_embedder, draft_table, rows, by_acceptance)

  @jax.jit
  def validation_figures(params, *inputs):
    return loss_fn(params, start.model, LossInputs(*inputs, True))[1]

  trained = training_loop.fit(
    config,
    workdir,
    params,
    _make_optimizer(config),
    loss_fn=loss,
    batch=batch,
    name=config.name,
    steps=config.steps,
    validate=lambda params: validation_figures(
      params, cast_embedder, draft_table, data.validation
    ),
  )
  folder = workdir / config.name
  trained_model = start._replace(params=trained | {'embedder': embedder})
  save(
    folder,
    trained_model,
    data.draft_vocab_ids,
    verifier=config.verifier,
    stored=config.stored,
  )
  return folder


def evaluate(folder: pathlib.Path, config: ConfigDict) -> dict[str, Any]:
  """Measures acceptance and costs of a drafter."""
  verifier = checkpoints.load_model(config.verifier, 'float32')
  drafter = checkpoints.load_model(folder, 'float32')
  figures: dict[str, Any] = distillation_data.measure_acceptance(
    verifier,
    drafter,
    texts.held_out_prompts(config),
    config.eval_gamma,
    max_new_tokens=config.answer_length,
    stop_strings=('\n',),
  )
  bound_drafter = drafters.bind_drafter(verifier, drafter)
  unit = costs.measure(verifier, drafter, bound_drafter, ()).low
  figures['cost of a call'] = unit.drafter_token_s / unit.verifier_token_s
  return figures


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, Any],
  command: str,
) -> None:
  """Writes the model card and the licence files of a drafter."""
  embedder = checkpoints.load_model(folder).params['embedder']
  start = f'continued from `{pathlib.Path(config.get("init", "")).name}`'
  if 'layers' in config:
    start = f'made of its layers {", ".join(map(str, config.layers))}'
  cards.write(
    folder,
    config,
    command,
    {k: x for k, x in figures.items() if k.startswith('temperature')},
    intro=(
      f'A drafter for `{config.verifier}`, {start}, with its embedding table,'
      ' which is not in this folder. It drafts'
      f' {len(embedder[language.VOCAB_IDS]):,} tokens, and reads all tokens. A'
      f' call costs {figures["cost of a call"]:.3f} verifier calls.'
    ),
    use=f"cascades.Sampler('{config.verifier}', '{folder.name}')",
  )
  text = json.dumps(figures, indent=2) + '\n'
  records.write_text(folder / 'figures.json', text)


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
