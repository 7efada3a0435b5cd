"""Training a recurrent head on what its verifier writes.

The verifier answers training problems; then, from every position of an answer,
the head is asked for the verifier's distribution of the next few tokens, given
the hidden state that it would be given there. The loss is the cross entropy of
the two, which is least where the head says what the verifier says.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cascades.drafters import heads, recurrent
from cascades.models import checkpoints
from cascades.sampler import sampler
from cascades.tasks import TASKS
from experiments.training.small_models import (
  make_optimizer,
  problem_stream,
  run_steps,
  table,
)


def write_texts(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> tuple[np.ndarray, np.ndarray]:
  """What the verifier answers, with the prompts before it.

  Returns:
    Tokens [texts, row_length], padded with 0; and for each the prompt's and
    the whole length, [texts, 2]. Answers that do not fit are cut.
  """
  stream = problem_stream(config.mixture, f'{config.seed}/head')
  prompts = [next(stream)[0] for _ in range(config.texts)]
  answers = sampler.Sampler(verifier, gamma=0, temperature=1.0).sample(
    prompts, max_new_tokens=config.answer_length, seed=config.seed, echo=True
  )
  tokens = np.zeros((len(answers), config.row_length), np.int32)
  lengths = np.zeros((len(answers), 2), np.int32)
  for row, length, answer in zip(tokens, lengths, answers, strict=True):
    ids = answer.tokens[: config.row_length]
    row[: len(ids)] = ids
    length[:] = len(answer.tokens) - len(answer.logprobs), len(ids)
  return tokens, lengths


def loss_fn(
  head: recurrent.Head,
  params: Any,
  model: Any,
  tokens: Int[Array, 'B L'],
  lengths: Int[Array, 'B 2'],
  depth: int,
) -> tuple[Float[Array, ''], Float[Array, 'depth']]:
  """Mean cross entropy with the verifier; and its expected acceptance.

  Args:
    head: Trained.
    params: The verifier's.
    model: The verifier.
    tokens: Texts.
    lengths: How many tokens prompts have, and texts.
    depth: Tokens drafted from each position.

  Returns:
    Nats per drafted token, and for each place in a draft the mean of
    sum min(p, q), the chance that its token is kept.
  """

  def one(tokens, lengths):
    positions = jnp.arange(tokens.shape[0])
    mask = positions[None] <= positions[:, None]
    logits, hidden, _ = model.with_hidden(params, tokens, positions, mask)
    said = jax.nn.softmax(logits.astype(jnp.float32))

    def draft(t):
      # The verifier said token t + 1 with hidden state t.
      def step(carry, i):
        state, last = carry
        state, guess = recurrent.step(
          model, params, head, hidden[t], state, last
        )
        at = jnp.minimum(t + 1 + i, tokens.shape[0] - 1)
        guess = jax.nn.log_softmax(guess.astype(jnp.float32))
        nats = -(said[at] * guess).sum()
        kept = jnp.minimum(said[at], jnp.exp(guess)).sum()
        # Of a text of n tokens, n - 1 positions say one that is there.
        inside = (t + 1 >= lengths[0]) & (t + 1 + i < lengths[1] - 1)
        following = tokens[jnp.minimum(at + 1, tokens.shape[0] - 1)]
        return (state, following), (nats * inside, kept * inside, inside)

      start = hidden[t], tokens[jnp.minimum(t + 1, tokens.shape[0] - 1)]
      return jax.lax.scan(step, start, jnp.arange(depth))[1]

    return jax.tree.map(lambda x: x.sum(0), jax.vmap(draft)(positions))

  found = jax.vmap(one)(tokens, lengths)
  nats, kept, count = jax.tree.map(lambda x: x.sum(0), found)
  return nats.sum() / count.sum(), kept / count


# Of the head's matrices; see `small_models.make_optimizer`.
_AXES = {
  'state': (0, 1),
  'input': (0, 1),
  'join': (0, 1),
  'mix': (1, 2),
}


def train_head(
  config: ConfigDict, workdir: pathlib.Path
) -> tuple[pathlib.Path, checkpoints.Checkpoint]:
  """Trains a head for a verifier, from its last checkpoint if there is one.

  Args:
    config: Fields of a training, such as those of configs/train_recurrent.py.
    workdir: Holds checkpoints and the log; the head is written beside them.

  Returns:
    The head's folder, and the verifier.
  """
  verifier = checkpoints.load_model(config.verifier)
  # In gemma's order, for long rows.
  model, params, _ = verifier.unpacked()
  tokens, lengths = write_texts(config, verifier)
  optimizer = make_optimizer(config.steps, config.learning_rate, _AXES)

  @jax.jit
  def init():
    key = jax.random.key(config.seed)
    head = recurrent.init_head(key, model.hidden_size(params), config.layers)
    return {'head': head, 'opt_state': optimizer.init(head)}

  @jax.jit
  def update(state, params, tokens, lengths):
    grad = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, kept), grads = grad(
      state['head'], params, model, tokens, lengths, config.depth
    )
    updates, opt_state = optimizer.update(
      grads, state['opt_state'], state['head']
    )
    head = optax.apply_updates(state['head'], updates)
    return {'head': head, 'opt_state': opt_state}, loss, kept

  def one(state, step):
    rng = np.random.default_rng((config.seed, step))
    chosen = rng.choice(len(tokens), config.rows, replace=False)
    state, loss, kept = update(state, params, tokens[chosen], lengths[chosen])
    return state, dict(loss=loss, kept=kept)

  state = run_steps(config, config.name, config.steps, workdir, init(), one)
  out = workdir / config.name
  heads.save(out, state['head'], verifier)
  return out, verifier


def evaluate(
  folder: pathlib.Path, verifier: checkpoints.Checkpoint, config: ConfigDict
) -> dict[str, dict[str, float]]:
  """How much of its drafts stays, on held-out problems; strict decoding.

  Returns:
    By task: acceptance and tokens per verifier call, at temperature 1 and 0.
  """
  found = {}
  for task in (TASKS[name] for name in config.mixture):
    examples = list(task.load(split='test', num_examples=config.eval_examples))
    figures = found[task.name] = {}
    for temperature in (1.0, 0.0):
      strict = sampler.Sampler(
        verifier,
        heads.load(folder),
        method='speed',
        lenience=0.0,
        gamma=config.eval_gamma,
        temperature=temperature,
      )
      answers = strict.sample(
        [e.prompt for e in examples], max_new_tokens=task.max_new_tokens
      )
      counts = {
        name: sum(a.counts[name] for a in answers)
        for name in ('accepted', 'examined', 'verifier_calls')
      }
      emitted = sum(len(a.logprobs) for a in answers)
      at = f'temperature {temperature:g}'
      figures[f'acceptance, {at}'] = counts['accepted'] / counts['examined']
      figures[f'tokens per verifier call, {at}'] = (
        emitted / counts['verifier_calls']
      )
  return found


_CARD = """---
license: apache-2.0
library_name: cascades
---

# {name}

A recurrent drafter (Cheng, Zhang et al. 2024, arXiv 2403.09919) for
`{verifier}`: a head on its last hidden state that shares its embedding table.
It drafts for that verifier only, which it knows by a fingerprint.

- Shape: state {size}, {layers} residual layers; {parameters:,} parameters.
- Data: {texts} answers of the verifier itself, at temperature 1, to training
  problems of `cascades.tasks`; no held-out problem was seen.
- Training: {steps} steps of {rows} texts, {depth} tokens drafted from every
  position; cross entropy with the verifier's distribution; Muon.
- Retrain: `python -m experiments.train --config=configs/train_recurrent.py`,
  then copy the folder here.

Held out, strict, gamma {gamma}, {examples} problems a task:

{table}

Use: `cascades.Sampler('{verifier}', '{name}', drafts=4,
verification='multi_round')`.
"""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, dict[str, float]],
) -> None:
  """Writes a card with these figures beside a head."""
  head = heads.load(folder).head
  text = _CARD.format(
    name=config.name,
    verifier=config.verifier,
    size=head['state'].shape[0],
    layers=config.layers,
    parameters=sum(x.size for x in head.values()),
    texts=config.texts,
    steps=config.steps,
    rows=config.rows,
    depth=config.depth,
    gamma=config.eval_gamma,
    examples=config.eval_examples,
    table=table(figures),
  )
  (folder / 'README.md').write_text(text)
