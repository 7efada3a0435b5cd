"""Training a recurrent head on what its verifier says.

From every position of an answer the head is asked for the verifier's
distribution of the next few tokens, given the hidden state that it would be
given there. The loss is the cross entropy of the two, which is least where the
head says what the verifier says.

Answers are the verifier's own, to training problems; or, where a config has
texts, as configs/train_recurrent.py:texts does, the users' as well (see
`distillation_data`), and then the head says only the tokens that are frequent
in them.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from cascades.config import DecodingConfig
from cascades.drafters.recurrent import recurrent_checkpoint, recurrent_drafter
from cascades.models import checkpoints
from cascades.sampler import sampler
from experiments import records
from experiments.tasks import TASKS
from experiments.training import (
  acceptance_eval,
  distillation_data,
  terms,
  texts,
  training_loop,
)
from experiments.training.small_models import problem_stream


def write_texts(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> texts.Rows:
  """What the verifier answers to problems, with the prompts before it.

  Returns:
    An answer a row, padded with 0; those that do not fit are cut.
  """
  stream = problem_stream(config.mixture, f'{config.seed}/head')
  prompts = [next(stream)[0] for _ in range(config.texts)]
  answers = sampler.Sampler(
    verifier,
    config=DecodingConfig(
      gamma=0,
      temperature=1.0,
    ),
  ).sample(
    prompts, max_new_tokens=config.answer_length, seed=config.seed, echo=True
  )
  tokens = np.zeros((len(answers), config.row_length), np.int32)
  places = []
  for row, answer in zip(tokens, answers, strict=True):
    ids = answer.tokens[: config.row_length]
    row[: len(ids)] = ids
    first = len(answer.tokens) - len(answer.logprobs)
    places.append(range(first - 1, len(ids) - 1))
  return texts.Rows(tokens, *texts.padded(places))


def loss_fn(
  head: recurrent_drafter.Head,
  params: Any,
  model: Any,
  said: Float[Array, 'n D'],
  tokens: Int[Array, 'B L'],
  places: Int[Array, 'B N'],
  counts: Bool[Array, 'B N'],
  hidden: Float[Array, 'B N D'],
  depth: int,
) -> tuple[Float[Array, ''], dict[str, Float[Array, 'depth']]]:
  """Mean cross entropy with the verifier; and its expected acceptance.

  Args:
    head: Trained.
    params: The verifier's.
    model: The verifier.
    said: Rows of its table, of what the head says.
    tokens: Rows of texts.
    places: Of each row, where a token of an answer is next.
    counts: Which of them.
    hidden: The verifier's states there.
    depth: Tokens drafted from each place.

  Returns:
    Nats per drafted token, and `kept`, for each step of a draft the mean of
    sum min(p, q), the chance that its token is kept; among the tokens that it
    says.
  """
  p = jax.nn.softmax(distillation_data.logits(model, hidden, said))
  count, longest = places.shape[1], tokens.shape[1]

  def read(*row):
    return recurrent_drafter.read(model, params, head, *row)

  def following(i):
    at = jnp.minimum(places + 1 + i, longest - 1)
    return jnp.take_along_axis(tokens, at, axis=1)

  def step(states, i):
    # The verifier said the token after a place with the state of the place.
    states, features = jax.vmap(jax.vmap(read))(hidden, states, following(i))
    guess = jax.nn.log_softmax(distillation_data.logits(model, features, said))
    at = jnp.minimum(jnp.arange(count) + 1 + i, count - 1)
    # As far as the answer goes on.
    inside = counts & counts[:, at] & (places[:, at] == places + 1 + i)
    nats = -(p[:, at] * guess).sum(-1)
    kept = jnp.minimum(p[:, at], jnp.exp(guess)).sum(-1)
    sums = (jnp.where(inside, x, 0).sum() for x in (nats, kept))
    return states, (*sums, inside.sum())

  hidden = hidden.astype(said.dtype)
  _, (nats, kept, many) = jax.lax.scan(step, hidden, jnp.arange(depth))
  kept = kept / jnp.maximum(1, many)
  return nats.sum() / jnp.maximum(1, many.sum()), {'kept': kept}


# Of the head's matrices; see `training_loop.make_optimizer`.
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
    workdir: Holds checkpoints, the log, and what the verifier says; the head is
      written beside them.

  Returns:
    The head's folder, and the verifier.

  Raises:
    ValueError: The verifier or the texts will not do.
  """
  checkpoints.check_dtype(config.dtype)
  verifier = checkpoints.load_model(config.verifier)
  # In gemma's order, for long rows.
  model, params, _ = whole = verifier.unpack()
  says = None
  if 'text' in config:
    lesson, _, says, _ = distillation_data.taught(config, whole, workdir)
  else:
    rows = write_texts(config, verifier)
    reads = whole._replace(params=distillation_data.cast(config.dtype, params))
    hidden = distillation_data.hidden(workdir / 'train.npy', reads, rows)
    lesson = distillation_data.DistillationBatch(rows, hidden)
  multiplied = distillation_data.cast(config.dtype, params['embedder'])
  said = multiplied['input_embedding'][: model.vocab_size]
  said = said if says is None else said[says]
  optimizer = training_loop.make_optimizer(
    config.steps, config.learning_rate, _AXES
  )

  @jax.jit
  def init():
    key = jax.random.key(config.seed)
    return recurrent_drafter.init_head(
      key, model.hidden_size(params), config.layers
    )

  def loss(head, params, *some):
    return loss_fn(head, params, model, *some, config.depth)

  def batch(step):
    return {'embedder': multiplied}, said, *lesson.some(config, step)

  sizes = config.name, config.steps, workdir
  head = training_loop.fit(config, *sizes, init(), optimizer, loss, batch)
  out = workdir / config.name
  recurrent_checkpoint.save(out, head, verifier, says)
  return out, verifier


def evaluate(
  folder: pathlib.Path, verifier: checkpoints.Checkpoint, config: ConfigDict
) -> dict[str, dict[str, float]]:
  """How much of its drafts stays, on held-out problems; strict decoding.

  Returns:
    By task: acceptance and tokens per verifier call, at temperature 1 and 0.
  """
  if 'text' in config:
    held = texts.documents(config)[: config.held_out]
    asked = texts.asked(config, held, config.eval_examples, 'held out', False)
    how = dict(max_new_tokens=config.answer_length, stop_strings=('\n',))
    groups = {'held_out': ([prompt for prompt, _ in asked], how)}
  else:
    groups = {}
    for task in (TASKS[name] for name in config.mixture):
      some = task.load(split='test', num_examples=config.eval_examples)
      how = dict(max_new_tokens=task.max_new_tokens)
      groups[task.name] = [example.prompt for example in some], how
  head, gamma = recurrent_checkpoint.load(folder), config.eval_gamma
  return {
    name: {
      f'{what}, {temperature}': value
      for temperature, found in acceptance_eval.strict(
        verifier, head, prompts, gamma, **how
      ).items()
      for what, value in found.items()
    }
    for name, (prompts, how) in groups.items()
  }


_CARD = """---
{licence}library_name: cascades
---

# {name}

A recurrent drafter (Cheng, Zhang et al. 2024, arXiv 2403.09919) for
`{verifier}`: a head on its last hidden state that shares its embedding table.
It drafts for that verifier only, which it knows by a fingerprint.

- Shape: state {size}, {layers} residual layers; {parameters:,} parameters.
- Says {says} tokens.
- Data: {data}.
- Training: {steps} steps of {rows} texts, {depth} tokens drafted from every
  position; cross entropy with the verifier's distribution; Muon.
- Retrain: `{command}`.

Held out, strict, gamma {eval_gamma}, {eval_examples} problems a task:

{table}

Use: `cascades.Sampler('{verifier}', '{name}')`; several drafts with
`drafts=4, verification='multi_round'`.
{terms}"""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, dict[str, float]],
  command: str,
) -> None:
  """Writes a card with these figures beside a head, and terms if it has any.

  Args:
    folder: The head's.
    config: Of its training.
    figures: What `evaluate` found.
    command: What trains it.
  """
  loaded = recurrent_checkpoint.load(folder)
  head, says = loaded.head, loaded.says
  data = (
    f'{config.texts} answers of the verifier itself, at temperature 1, to\n'
    '  training problems of `experiments.tasks`; no held-out problem was seen'
  )
  if 'text' in config:
    at = distillation_data.listed(config.temperatures)
    # As `distillation_data.taught` mixes them.
    kinds = 1 + len(config.temperatures)
    data = (
      f"{config.texts} rows of users' texts, one of {kinds}, and of the"
      f" verifier's own answers,\n  at temperature {at}; no held-out text was"
      ' seen'
    )
  text = _CARD.format(
    **config,
    size=head['state'].shape[0],
    parameters=sum(x.size for x in head.values()),
    says='all' if says is None else f'{len(says):,}',
    data=data,
    command=command,
    table=acceptance_eval.by_task(figures),
    **terms.put(folder, config.verifier, of_weights=False),
  )
  records.write_text(folder / 'README.md', text)
