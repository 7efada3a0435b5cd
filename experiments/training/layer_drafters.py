"""Training a drafter for a verifier that has none.

It begins as some of the verifier's own layers, between the verifier's embedding
table and its last norm, and says only the tokens that are frequent in answers
(see `LanguageModel.restrict_vocab`). It learns what the verifier says where an
answer is being written, be that the user's or one of its own: first by the
forward KL divergence, sum p log p/q, and then by -log sum min(p, q), which is
the acceptance itself (LK loss, arXiv 2602.23881). p is the verifier's
distribution over the tokens that the drafter says.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from cascades.drafters import pairing
from cascades.models import checkpoints, language
from experiments import records
from experiments.sweeps import costs
from experiments.training import (
  acceptance_eval,
  distillation_data,
  reduced_folders,
  terms,
  texts,
  training_loop,
)


def begin(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """The drafter before it has learnt anything.

  Args:
    config: Its `layers` are the verifier's that it begins as; or its `init` is
      the name or the folder of a drafter to go on from.
    verifier: In gemma's order.

  Raises:
    ValueError: There are both fields or neither; or no such layers, they are no
      model of their own, or none of them attends to the whole text; or what is
      to be gone on from shares no table with the verifier.
  """
  if ('init' in config) == ('layers' in config):
    raise ValueError(
      'init: give either that, a drafter to go on from, or layers, those of the'
      ' verifier that a new one begins as.'
    )
  if 'init' in config:
    return _again(config.init, verifier)
  model, params, tokenizer = verifier
  c = model.module.config
  layers = tuple(config.layers)
  if not layers or not set(layers) <= set(range(c.num_layers)):
    raise ValueError(
      f'layers: {layers} will not do; the verifier has {c.num_layers}, from 0.'
    )
  # What is no model of its own is refused there.
  model.first_layers(1)
  kinds = [c.attention_types[i] for i in layers]
  if all(kind.name != 'GLOBAL' for kind in kinds):
    whole = [i for i, k in enumerate(c.attention_types) if k.name == 'GLOBAL']
    raise ValueError(
      f'layers: none of {layers} attends to the whole text; take one of'
      f' {", ".join(map(str, whole))} too.'
    )
  config_ = dataclasses.replace(c, attention_types=tuple(kinds))
  module = dataclasses.replace(model.module, config=config_)
  own = {f'layer_{i}': params[f'layer_{j}'] for i, j in enumerate(layers)}
  shared = {name: params[name] for name in ('embedder', 'final_norm')}
  return checkpoints.Checkpoint(
    dataclasses.replace(model, module=module), own | shared, tokenizer
  )


def _again(
  name: str, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """A drafter that was trained before, with all of the verifier's table."""
  model, params, tokenizer = checkpoints.load_model(name, 'float32').unpack()
  table = params['embedder']['input_embedding']
  theirs = verifier.params['embedder']['input_embedding']
  shared = language.VOCAB_IDS in params['embedder']
  if not shared or table.shape != theirs.shape or (table != theirs).any():
    raise ValueError(
      f'init: {name} does not share the table of the verifier; give a drafter'
      ' that was trained for it.'
    )
  embedder = verifier.params['embedder']
  return checkpoints.Checkpoint(
    model, params | {'embedder': embedder}, tokenizer
  )


def loss_fn(
  own: Any,
  shared: Any,
  model: language.LanguageModel,
  head: Float[Array, 'n D'],
  tokens: Int[Array, 'B L'],
  places: Int[Array, 'B N'],
  counts: Bool[Array, 'B N'],
  hidden: Float[Array, 'B N D'],
  by_acceptance: Array | bool,
  sharpened: tuple[float, ...] = (1.0,),
) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
  """What is to be made less; and the figures that people look at.

  Args:
    own: The drafter's layers and norm; they become what the head is before
      anything is multiplied.
    shared: Its embedder.
    model: The drafter.
    head: Rows of the table of what it says.
    tokens: Rows.
    places: Of each row, which the loss is about.
    counts: Which of them.
    hidden: The verifier's states of them.
    by_acceptance: Whether the loss is -log sum min(p, q), else KL(p, q).
    sharpened: Temperatures of both at which the former is taken; the loss is
      their mean. The lower, the more it asks for the same likeliest token.

  Returns:
    Mean over places, in nats; KL, `kept`, the mean of sum min(p, q), both among
    the tokens that it says, and `agree`, how often both hold the same token
    likeliest.
  """
  params = distillation_data.cast(head.dtype, own) | {'embedder': shared}
  own_hidden = distillation_data.forward(model, params, tokens, places)
  said, guess = (
    distillation_data.logits(model, x, head) for x in (hidden, own_hidden)
  )
  log_p, log_q = jax.nn.log_softmax(said), jax.nn.log_softmax(guess)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  kept = jnp.minimum(p, q).sum(-1)

  def mean(values):
    return jnp.where(counts, values, 0).sum() / jnp.maximum(1, counts.sum())

  divergence = mean((p * (log_p - log_q)).sum(-1))
  agree = mean(said.argmax(-1) == guess.argmax(-1))

  def rejected(temperature):
    both = (jax.nn.log_softmax(x / temperature) for x in (said, guess))
    return -jax.nn.logsumexp(jnp.minimum(*both), -1)

  rejection = sum(map(rejected, sharpened)) / len(sharpened)
  loss = jnp.where(by_acceptance, mean(rejection), divergence)
  return loss, dict(kl=divergence, kept=mean(kept), agree=agree)


def train_drafter(
  config: ConfigDict, workdir: pathlib.Path
) -> tuple[pathlib.Path, list[texts.Document]]:
  """Trains a drafter, from its last checkpoint if there is one.

  Args:
    config: Fields of a training, such as those of configs/train_drafter.py.
    workdir: Holds checkpoints, the log, and what the verifier says.

  Returns:
    The drafter's folder; and documents that were held out.

  Raises:
    ValueError: The verifier or the texts will not do.
  """
  checkpoints.check_dtype(config.dtype)
  reduced_folders.check_stored(config.stored)
  # In gemma's order, for long rows.
  verifier = checkpoints.load_model(config.verifier, 'float32').unpack()
  start = begin(config, verifier)
  lesson, watched, tokens, held = distillation_data.taught(
    config, verifier, workdir
  )
  shared = start.params['embedder']
  multiplied = distillation_data.cast(config.dtype, shared)
  head = multiplied['input_embedding'][tokens]
  own = {k: v for k, v in start.params.items() if k != 'embedder'}
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(
      optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, min(100, config.steps // 10), config.steps
      ),
      weight_decay=0.01,
    ),
  )

  def loss(own, shared, *given):
    sharpened = tuple(config.sharpened)
    return loss_fn(own, shared, start.model, *given, sharpened)

  @jax.jit
  def watch(own, shared, *given):
    return loss_fn(own, shared, start.model, *given, True)[1]

  def batch(step):
    by_acceptance = np.bool_(step >= config.kl_fraction * config.steps)
    return multiplied, head, *lesson.some(config, step), by_acceptance

  def look(own):
    return watch(own, multiplied, head, *watched.of(...))

  sizes = config.name, config.steps, workdir
  own = training_loop.fit(config, *sizes, own, optimizer, loss, batch, look)
  out = workdir / config.name
  trained = own | {'embedder': shared}
  reduced_folders.save(
    out, start.model, trained, tokens, config.verifier, config.stored
  )
  return out, held


def evaluate(
  folder: pathlib.Path, held: list[texts.Document], config: ConfigDict
) -> dict[str, Any]:
  """Whether a drafter pays, on prompts that were held out.

  Returns:
    At temperature 1 and 0 acceptance and tokens per call of the verifier,
    strictly; what a call costs; and the speed-up that they promise, by gamma.
  """
  verifier = checkpoints.load_model(config.verifier, 'float32')
  drafter = checkpoints.load_model(folder, 'float32')
  asked = texts.asked(config, held, config.eval_examples, 'held out', False)
  prompts = [prompt for prompt, _ in asked]
  figures: dict[str, Any] = acceptance_eval.strict(
    *(verifier, drafter, prompts, config.eval_gamma),
    max_new_tokens=config.answer_length,
    stop_strings=('\n',),
  )
  gammas = sorted({1, 2, 3, 4, 6, 8, config.eval_gamma})
  bound_drafter = pairing.bind_drafter(verifier, drafter)
  unit = costs.measure(
    verifier, drafter, bound_drafter, [(gamma, 1) for gamma in gammas]
  ).low
  figures['cost of a call'] = unit.drafter_token_s / unit.verifier_token_s
  figures['speed-up'] = {
    name: {gamma: promised(of['acceptance'], gamma, unit) for gamma in gammas}
    for name, of in figures.items()
    if name.startswith('temperature')
  }
  return figures


def promised(kept: float, gamma: int, unit: Any) -> float:
  """The speed-up of strict decoding that unit costs and acceptance promise.

  A block has (1 - b^(gamma + 1)) / (1 - b) tokens (Leviathan et al. 2023, eq.
  1), and costs gamma calls of the drafter, and one that reads them all.
  """
  tokens = gamma + 1 if kept == 1 else (1 - kept ** (gamma + 1)) / (1 - kept)
  block = gamma * unit.drafter_token_s + unit.verify_s[gamma]
  return tokens * unit.verifier_token_s / block


_CARD = """---
{licence}library_name: cascades
---

# {folder}

A drafter for `{verifier}`: {begun},
with its embedding table, which is not in this folder. It says {said:,} tokens,
those most frequent in the texts below, and reads all.

- Data: {documents}; {answers:,} answers are the verifier's
  own, at temperature {at}. In {texts:,} rows of {row_length} tokens.
- Training: {steps:,} steps of {rows} rows; {losses};
  AdamW, seed {seed}.
- Retrain: `{command}`.
- Stored in {numbers}: {size:.1f} MB.

On {eval_examples} held-out prompts, strict, gamma {eval_gamma}:

{table}

A call costs {cost:.3f} of the verifier's on {device}, and promises, by gamma:

{promise}

Use: `cascades.Sampler('{verifier}', '{folder}')`.
It is a language model, and answers alone too.
{terms}"""


# As a card says it.
_STORED = {None: 'float32', 'int8': '8 bits, a scale to each row of a matrix'}


def _begun(config: ConfigDict) -> str:
  """What a drafter was before it learnt."""
  if 'init' in config:
    return f'an earlier\n`{pathlib.Path(config.init).name}`, trained on'
  layers = ', '.join(map(str, config.layers))
  return f'its layers {layers} as they began, trained on'


def _losses(config: ConfigDict) -> str:
  """What was made less, in the order in which it was."""
  said = '-log sum min(p, q)'
  if tuple(config.sharpened) != (1.0,):
    said += f' at temperatures {distillation_data.listed(config.sharpened)}'
  if not config.kl_fraction:
    return said
  return (
    'forward KL divergence from the\n'
    f'  verifier for {config.kl_fraction:.0%} of them, then {said}'
  )


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: dict[str, Any],
  command: str,
) -> None:
  """Writes a card with these figures, and a notice, beside a drafter."""
  said = checkpoints.load_model(folder).params['embedder'][language.VOCAB_IDS]
  at = [name for name in figures if name.startswith('temperature')]

  def table(first, figures):
    rows = [(at_, *(f'{x:.2f}' for x in figures[at_].values())) for at_ in at]
    return acceptance_eval.table((first, *map(str, figures[at[0]])), rows)

  size = sum(f.stat().st_size for f in folder.glob('*.safetensors'))
  documents = ', '.join(f'`{task}`' for task in config.tasks)
  text = _CARD.format(
    **config,
    folder=folder.name,
    begun=_begun(config),
    at=distillation_data.listed(config.temperatures),
    losses=_losses(config),
    said=len(said),
    documents=f'training problems of {documents}' if documents else 'own texts',
    command=command,
    numbers=_STORED.get(config.stored, config.stored),
    size=size / 1e6,
    table=table('', figures),
    cost=figures['cost of a call'],
    device=jax.devices()[0].device_kind,
    promise=table('gamma', figures['speed-up']),
    **terms.put(folder, config.verifier),
  )
  records.write_text(folder / 'README.md', text)
  text = json.dumps(figures, indent=2) + '\n'
  records.write_text(folder / 'figures.json', text)
