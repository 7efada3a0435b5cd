"""Training of recurrent heads on the distributions of their verifier.

From each position of an answer, the head predicts the verifier's distribution
of the next few tokens from the hidden state that it has there when it drafts.
The loss is the cross entropy of both distributions.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from cascades.drafters import recurrent
from cascades.models import checkpoints
from experiments.training import distillation_data, training_loop


def loss_fn(
  head: recurrent.Head,
  params: Any,
  model: Any,
  table: Float[Array, 'n D'],
  batch: distillation_data.Rows,
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


# Axes of the head's matrices by name: those summed over, and the output axes.
_AXES = {'state': (0, 1), 'input': (0, 1), 'join': (0, 1), 'mix': (1, 2)}


def _make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
  """Makes optax's Muon for matrices, Adam for the rest; linear decay."""
  steps = config.steps

  def axes_of(path, _):
    numbers = next((_AXES[p.key] for p in path if p.key in _AXES), None)
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
      schedule(config.learning_rate),
      adam_learning_rate=schedule(config.learning_rate / 5),
      muon_weight_dimension_numbers=lambda params: (
        jax.tree_util.tree_map_with_path(axes_of, params)
      ),
    ),
  )


def train(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
  """Trains a head, resuming from its last checkpoint if there is one."""
  verifier = checkpoints.load_model(config.verifier)
  unpacked = verifier.unpack()
  model, params, _ = unpacked
  rows, ids = distillation_data.prepare(config, unpacked, workdir)
  embedder = distillation_data.cast(config.dtype, params['embedder'])
  table = embedder['input_embedding'][ids]

  @jax.jit
  def init():
    key = jax.random.key(config.seed)
    return recurrent.init_head(key, model.hidden_size(params), config.layers)

  def loss(head, params, table, rows):
    return loss_fn(head, params, model, table, batch=rows, depth=config.depth)

  def batch(_, rows):
    return {'embedder': embedder}, table, rows

  head = training_loop.fit(
    config, workdir, init(), _make_optimizer(config), rows, loss, batch
  )
  folder = workdir / config.name
  recurrent.save(folder, head, verifier, ids)
  return folder
