"""What a drafter learns from: texts, and what its verifier says of them.

What the verifier says of a position hangs on its last hidden state, and these
are made once, and kept in the workdir: they are a thousandth of its logits.
"""

import collections
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cascades import atomic
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language
from cascades.sampler import sampler
from experiments import records
from experiments.training import texts

# Fields of a config that decide what the verifier says, and of what.
_DECIDING = (
  *('seed', 'verifier', 'shots', 'held_out', 'answers', 'temperatures'),
  *('answer_length', 'texts', 'row_length', 'dtype'),
)
# Rows whose hidden states are made at a time, and held-out rows that the log is
# about.
_READ, _WATCHED = 4, 8


class DistillationBatch(NamedTuple):
  """What a drafter learns from.

  Attributes:
    rows: Texts, and their places that count.
    hidden: What the verifier makes of these places, [rows, places, width].
  """

  rows: texts.Rows
  hidden: np.ndarray

  def of(self, chosen: Any) -> tuple[np.ndarray, ...]:
    """Tokens, places, which of them count, and states, of some rows."""
    return *(each[chosen] for each in self.rows), self.hidden[chosen]

  def some(self, config: ConfigDict, step: int) -> tuple[np.ndarray, ...]:
    """The same of rows that a config's seed and a step choose."""
    rng = np.random.default_rng((config.seed, step))
    return self.of(rng.choice(len(self.hidden), config.rows, replace=False))


class DistillationData(NamedTuple):
  """All that a training takes of texts.

  Attributes:
    lesson: What is learnt from.
    watched: The same of texts that are held out.
    said: Ids of what is to be said, upwards.
    held: Documents that are held out.
  """

  lesson: DistillationBatch
  watched: DistillationBatch
  said: np.ndarray
  held: list[texts.Document]


def forward(
  model: language.LanguageModel,
  params: Any,
  tokens: Int[Array, 'B L'],
  places: Int[Array, 'B N'],
) -> Float[Array, 'B N D']:
  """Hidden states of places of rows, without a cache."""

  def one(tokens, places):
    positions = jnp.arange(tokens.shape[0])
    mask = positions[None] <= positions[:, None]
    return model.with_hidden(params, tokens, positions, mask)[1][places]

  return jax.vmap(one)(tokens, places)


def cast(dtype: Any, tree: Any) -> Any:
  """Parameters as other numbers."""
  return jax.tree.map(lambda x: x.astype(dtype), tree)


def hidden(
  file: pathlib.Path, verifier: checkpoints.Checkpoint, rows: texts.Rows
) -> np.ndarray:
  """Hidden states of rows, from a file as far as they are there.

  Args:
    file: Of an earlier start, or to be made.
    verifier: In gemma's order, and in the type that states are kept in.
    rows: Texts, and the places of which states are wanted.

  Raises:
    ValueError: The file is of other rows.
  """
  model, params, _ = verifier
  shape = (*rows.places.shape, model.hidden_size(params))
  progress = file.with_suffix('.done')
  done = int(progress.read_text()) if progress.exists() else 0
  file.parent.mkdir(parents=True, exist_ok=True)
  dtype = model.dtype(params)
  # As bits, where numpy has no such numbers of its own.
  bits = np.uint16 if dtype == jnp.bfloat16 else np.float32
  if done:
    kept = np.lib.format.open_memmap(file, 'r+', None, shape)
  else:
    kept = _reserve(file, bits, shape)
  if kept.shape != shape or kept.dtype != bits:
    raise ValueError(f'workdir: {file} is of another training; remove it.')
  run = jax.jit(functools.partial(forward, model))
  count = len(rows.tokens)
  with tqdm.tqdm(total=count, initial=done, desc='reading') as bar:
    while done < count:
      some = np.arange(done, min(done + _READ, count))
      # A shape of its own for the last costs more.
      full = np.resize(some, _READ)
      found = run(params, rows.tokens[full], rows.places[full])
      kept[some] = np.asarray(found).view(bits)[: len(some)]
      done += len(some)
      bar.update(len(some))
      if done == count or done % (64 * _READ) == 0:
        kept.flush()
        atomic.write_text(progress, str(done))
  return kept.view(dtype)


def _reserve(
  file: pathlib.Path, bits: Any, shape: tuple[int, ...]
) -> np.memmap:
  """Makes an array on the disk that is known to have the room.

  What is written to an array that turns out to have no room kills the process.

  Raises:
    OSError: The disk is full; names the file, of which nothing is left.
  """
  try:
    with atomic.name_path_in_errors(file):
      kept = np.lib.format.open_memmap(file, 'w+', bits, shape)
      # Where the system can reserve room.
      if hasattr(os, 'posix_fallocate'):
        with file.open('r+b') as out:
          os.posix_fallocate(out.fileno(), 0, file.stat().st_size)
  except BaseException:
    file.unlink(missing_ok=True)
    raise
  return kept


def logits(
  model: language.LanguageModel,
  states: Float[Array, '*B D'],
  rows: Float[Array, 'n D'],
) -> Float[Array, '*B n']:
  """What a model says of states, of some tokens alone.

  Args:
    model: Knows whether its logits are capped.
    states: Normalised, of whatever type.
    rows: Of its table, in the type that is multiplied.

  Returns:
    float32.
  """
  said = jnp.einsum(
    '...D,nD->...n',
    states.astype(rows.dtype),
    rows,
    preferred_element_type=jnp.float32,
  )
  cap = model.module.config.final_logit_softcap
  return said if cap is None else jnp.tanh(said / cap) * cap


def taught(
  config: ConfigDict, verifier: checkpoints.Checkpoint, workdir: pathlib.Path
) -> DistillationData:
  """Has the verifier answer, and read.

  Args:
    config: Fields of a training on texts, such as those of
      configs/train_drafter.py.
    verifier: In gemma's order.
    workdir: Holds what it says.

  Raises:
    ValueError: The texts will not do, or the workdir is another training's.
  """
  found = texts.documents(config)
  deciding = {name: config[name] for name in _DECIDING}
  deciding['text'] = records.digest(found)
  held, found = found[: config.held_out], found[config.held_out :]
  # What stands in the texts twice is not learnt from if it is held out.
  watched = {*held}
  found = [document for document in found if document not in watched]
  tokenizer = verifier.tokenizer
  # First, for what will not do is found before the verifier has answered.
  made = {
    'held_out': texts.rows(config, [held], tokenizer, _WATCHED, 'held_out')
  }
  if not made['held_out'].counts.any():
    raise ValueError(
      f'row_length: in {config.row_length} tokens no answer begins after an'
      ' example; give more.'
    )
  asked = texts.asked(config, found, config.answers, 'answers')
  kept = workdir / 'answers.jsonl'
  records.claim(workdir / 'lessons.json', deciding, 'training', kept.exists())

  @functools.cache
  def writes(temperature):
    model = checkpoints.load_model(config.verifier)
    return sampler.Sampler(
      model,
      config=DecodingConfig(
        gamma=0,
        temperature=temperature,
      ),
    )

  # Some prompts at each temperature in turn.
  temperatures = tuple(config.temperatures)

  def turn(number):
    return number // texts.AT_A_TIME % len(temperatures)

  def answer(some, first):
    answers = writes(temperatures[turn(first)]).sample(
      some,
      max_new_tokens=config.answer_length,
      seed=config.seed + first,
      stop_strings=('\n',),
    )
    return [answer.text for answer in answers]

  prompts = [prompt for prompt, _ in asked]
  written = texts.kept(kept, prompts, answer)
  own: list[list[texts.Document]] = [[] for _ in temperatures]
  for i, (_, document) in enumerate(asked):
    # An empty one would be taken for a text without an answer.
    if written[i] or not document.answer:
      own[turn(i)].append(document._replace(answer=written[i]))
  # Its own of each temperature as often as the user's, where there are any.
  kinds = [found, *filter(None, own)]
  made['train'] = texts.rows(config, kinds, tokenizer, config.texts, 'train')
  reads = verifier._replace(params=cast(config.dtype, verifier.params))
  distillation_data = [
    DistillationBatch(
      made[name], hidden(workdir / f'{name}.npy', reads, made[name])
    )
    for name in ('train', 'held_out')
  ]
  special = (*tokenizer.stops, *tokenizer.encode(texts.BETWEEN))
  said = texts.vocabulary(kinds, tokenizer, config.vocabulary, [*{*special}])
  return DistillationData(*distillation_data, said, held)


def listed(numbers: Sequence[float]) -> str:
  """Numbers as a sentence has them, and their shares if some stand twice."""
  times = collections.Counter(numbers)
  whole = len(numbers)
  shares = len(times) < whole
  return ' and '.join(
    f'{x:g} ({n} of {whole})' if shares else f'{x:g}' for x, n in times.items()
  )
