"""Training of recurrent heads on the distributions of their verifier.

From each position of an answer, the head predicts the verifier's distribution
of the next few tokens from the hidden state that it has there when it drafts.
The loss is the cross entropy of both distributions.

The verifier writes the answers, to training problems. Configs with texts, such
as configs/train_recurrent.py:texts, also use the answers of these texts (see
`distillation_data`), and the head drafts only tokens that are frequent in
answers.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from cascades.config import DecodingConfig
from cascades.drafters import recurrent
from cascades.models import checkpoints, tensor_files
from cascades.sampler import sampler
from experiments.tasks import TASKS
from experiments.training import cards, distillation_data, texts, training_loop
from experiments.training.small_models import problem_stream


def generate_rows(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> texts.Rows:
  """Returns rows of problems and the verifier's answers."""
  stream = problem_stream(config.mixture, f'{config.seed}/head')
  prompts = [next(stream)[0] for _ in range(config.texts)]
  options = DecodingConfig(gamma=0, temperature=1.0)
  answers = sampler.Sampler(verifier, config=options).sample(
    prompts, max_new_tokens=config.answer_length, seed=config.seed, echo=True
  )
  tokens = np.zeros((len(answers), config.row_length), np.int32)
  positions = []
  for row, answer in zip(tokens, answers, strict=True):
    ids = answer.tokens[: config.row_length]
    row[: len(ids)] = ids
    first = len(answer.tokens) - len(answer.logprobs)
    positions.append(range(first - 1, len(ids) - 1))
  return texts.Rows(tokens, *texts.pad_positions(positions))


def loss_fn(
  head: recurrent.Head,
  params: Any,
  model: Any,
  table: Float[Array, 'n D'],
  batch: distillation_data.DistillationBatch,
  depth: int,
) -> tuple[Float[Array, ''], dict[str, Float[Array, 'depth']]]:
  """Computes the mean cross entropy with the verifier."""
  p = jax.nn.softmax(distillation_data.draft_logits(model, batch.hidden, table))
  tokens, positions, mask = batch.tokens, batch.positions, batch.mask
  count, length = positions.shape[1], tokens.shape[1]

  def read(*inputs):
    return recurrent.read(model, params, head, *inputs)

  def tokens_after(i):
    index = jnp.minimum(positions + 1 + i, length - 1)
    return jnp.take_along_axis(tokens, index, axis=1)

  def step(states, i):
    # The head reads the token after a position with the state at the position.
    states, features = jax.vmap(jax.vmap(read))(hidden, states, tokens_after(i))
    log_q = jax.nn.log_softmax(
      distillation_data.draft_logits(model, features, table)
    )
    index = jnp.minimum(jnp.arange(count) + 1 + i, count - 1)
    # Drafts end with the answer.
    is_inside = (
      mask & mask[:, index] & (positions[:, index] == positions + 1 + i)
    )
    nats = -(p[:, index] * log_q).sum(-1)
    acceptance = jnp.minimum(p[:, index], jnp.exp(log_q)).sum(-1)
    sums = (jnp.where(is_inside, x, 0).sum() for x in (nats, acceptance))
    return states, (*sums, is_inside.sum())

  hidden = batch.hidden.astype(table.dtype)
  _, (nats, acceptance, counts) = jax.lax.scan(step, hidden, jnp.arange(depth))
  acceptance = acceptance / jnp.maximum(1, counts)
  return nats.sum() / jnp.maximum(1, counts.sum()), {'kept': acceptance}


# Axes of the head's matrices; see `training_loop.make_optimizer`.
_AXES = {'state': (0, 1), 'input': (0, 1), 'join': (0, 1), 'mix': (1, 2)}


def train(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
  """Trains a head, resuming from its last checkpoint if there is one."""
  checkpoints.check_dtype(config.dtype, tensor_files.FLOATS)
  distillation_data.check_rows(config)
  verifier = checkpoints.load_model(config.verifier)
  # In gemma's layout, which is faster for long rows.
  unpacked = verifier.unpack()
  model, params, _ = unpacked
  embedder = distillation_data.cast(config.dtype, params['embedder'])
  table, draft_vocab_ids = embedder['input_embedding'][: model.vocab_size], None
  if 'text' in config:
    data = distillation_data.prepare(config, unpacked, workdir)
    rows, draft_vocab_ids = data.train, data.draft_vocab_ids
    table = table[draft_vocab_ids]
  else:
    rows = distillation_data.read_rows(
      unpacked, generate_rows(config, verifier), config.dtype, workdir
    )

  @jax.jit
  def init():
    key = jax.random.key(config.seed)
    return recurrent.init_head(key, model.hidden_size(params), config.layers)

  def loss(head, params, table, rows):
    return loss_fn(head, params, model, table, batch=rows, depth=config.depth)

  head = training_loop.fit(
    config,
    workdir,
    init(),
    training_loop.make_optimizer(config.steps, config.learning_rate, _AXES),
    loss_fn=loss,
    batch=lambda step: (
      {'embedder': embedder},
      table,
      rows.sample(config, step),
    ),
    name=config.name,
    steps=config.steps,
  )
  folder = workdir / config.name
  recurrent.save(folder, head, verifier, draft_vocab_ids)
  return folder


def evaluate(
  folder: pathlib.Path, config: ConfigDict
) -> dict[str, dict[str, float]]:
  """Measures the acceptance of strict decoding on held-out problems."""
  verifier = checkpoints.load_model(config.verifier)
  head = recurrent.RecurrentHead.load(folder)
  sets: dict[str, tuple[list[str], dict[str, Any]]] = {}
  if 'text' in config:
    options = dict(max_new_tokens=config.answer_length, stop_strings=('\n',))
    sets['held_out'] = texts.held_out_prompts(config), options
  else:
    for task in (TASKS[name] for name in config.mixture):
      examples = task.load(split='test', num_examples=config.eval_examples)
      options = dict(max_new_tokens=task.max_new_tokens)
      sets[task.name] = [example.prompt for example in examples], options
  return {
    name: {
      f'{score}, {temperature}': value
      for temperature, scores in distillation_data.measure_acceptance(
        verifier, head, prompts, config.eval_gamma, **options
      ).items()
      for score, value in scores.items()
    }
    for name, (prompts, options) in sets.items()
  }


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, dict[str, float]],
  command: str,
) -> None:
  """Writes the model card of a head, and licence files if it needs any."""
  loaded = recurrent.RecurrentHead.load(folder)
  ids, size = loaded.draft_vocab_ids, sum(x.size for x in loaded.head.values())
  cards.write(
    folder,
    config,
    command,
    figures,
    intro=(
      'A recurrent drafter (Cheng, Zhang et al. 2024, arXiv 2403.09919) for'
      f' `{config.verifier}`: a head on its last hidden state that shares its'
      f' embedding table, with {size:,} parameters. It drafts'
      f' {"all" if ids is None else f"{len(ids):,}"} tokens for that verifier'
      ' only, which it identifies by a fingerprint.'
    ),
    use=f"cascades.Sampler('{config.verifier}', '{config.name}')",
    has_weights=False,
  )
