"""Distillation data: training rows, and hidden states of the verifier on them.

The last hidden state at a position determines the verifier's distribution, and
takes a thousandth of the space of its logits. The states are computed once and
stored in the workdir.
"""

import functools
import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cascades import decisions, files
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language
from cascades.sampler import sampler
from experiments import cli, records
from experiments.training import texts

# Fields of a config that determine the rows and the hidden states.
_DATA_FIELDS = (
  *('seed', 'verifier', 'shots', 'held_out', 'answers', 'temperatures'),
  *('answer_length', 'texts', 'row_length', 'dtype'),
)
# File of these fields in a workdir.
_DATA_FILE = 'lessons.json'
# Rows whose hidden states are computed at a time.
_BATCH_SIZE = 4
# Held-out rows whose figures are logged.
_VALIDATION_ROWS = 8


class DistillationBatch(NamedTuple):
  """Training rows, and the verifier's hidden states at their positions.

  Attributes:
    tokens: Token ids, [B, L].
    positions: Positions before a token of an answer, [B, N].
    mask: True for positions that are not padding, [B, N].
    hidden: Last hidden states of the verifier at the positions, [B, N, D].
  """

  tokens: Any
  positions: Any
  mask: Any
  hidden: Any

  def select(self, indices: np.ndarray) -> 'DistillationBatch':
    """Returns the batch of some rows."""
    return DistillationBatch(*(field[indices] for field in self))

  def sample(self, config: ConfigDict, step: int) -> 'DistillationBatch':
    """Returns the rows of a training step, drawn by the config's seed."""
    rng = np.random.default_rng((config.seed, step))
    indices = rng.choice(len(self.hidden), config.rows, replace=False)
    return self.select(indices)


class DistillationData(NamedTuple):
  """The data of a training on texts."""

  train: DistillationBatch
  validation: DistillationBatch
  draft_vocab_ids: np.ndarray
  held_out: list[texts.Document]


def hidden_at(
  model: language.LanguageModel,
  params: Any,
  tokens: Int[Array, 'B L'],
  positions: Int[Array, 'B N'],
) -> Float[Array, 'B N D']:
  """Computes last hidden states, [B, N, D], at N positions of each row."""

  def hidden_of_row(tokens, row_positions):
    order = jnp.arange(tokens.shape[0])
    mask = order[None] <= order[:, None]
    return model.with_hidden(params, tokens, order, mask)[1][row_positions]

  return jax.vmap(hidden_of_row)(tokens, positions)


def check_rows(config: ConfigDict) -> None:
  """Checks that a step's rows can be drawn, before the verifier works."""
  if config.rows > config.texts:
    raise ValueError(
      f'rows: must be at most the number of texts, {config.texts}, got'
      f' {config.rows}.'
    )


def cast(dtype: Any, tree: Any) -> Any:
  """Converts all arrays of a tree to a dtype."""
  return jax.tree.map(lambda x: x.astype(dtype), tree)


def load_hidden(
  file: pathlib.Path, verifier: checkpoints.Checkpoint, rows: texts.Rows
) -> np.ndarray:
  """Returns hidden states of rows, computing those that a file lacks."""
  model, params, _ = verifier
  shape = (*rows.positions.shape, model.hidden_size(params))
  # The number of rows that are done, and what they were computed from.
  progress = file.with_suffix('.done')
  inputs = hashlib.sha256(decisions.fingerprint(params).encode())
  for array in rows:
    inputs.update(np.ascontiguousarray(array).tobytes())
  name, done = inputs.hexdigest(), 0
  if progress.exists() and file.exists():
    count, *names = progress.read_text().split()
    if names != [name]:
      raise ValueError(
        f'workdir: {file} belongs to another training; delete it.'
      )
    done = int(count)
  file.parent.mkdir(parents=True, exist_ok=True)
  dtype = model.dtype(params)
  # numpy has no bfloat16, whose bits are stored instead.
  bits = np.uint16 if dtype == jnp.bfloat16 else np.float32
  if done:
    states = np.lib.format.open_memmap(file, 'r+', None, shape)
  else:
    states = _reserve(file, bits, shape)
  compute = jax.jit(functools.partial(hidden_at, model))
  count = len(rows.tokens)
  with cli.progress(count, 'reading texts', initial=done) as bar:
    while done < count:
      indices = np.arange(done, min(done + _BATCH_SIZE, count))
      # Repeats rows of the last batch, which would be compiled for its size.
      batch = np.resize(indices, _BATCH_SIZE)
      hidden = compute(params, rows.tokens[batch], rows.positions[batch])
      states[indices] = np.asarray(hidden).view(bits)[: len(indices)]
      done += len(indices)
      bar.update(len(indices))
      if done == count or done % (64 * _BATCH_SIZE) == 0:
        states.flush()
        files.write_text(progress, f'{done} {name}')
  return states.view(dtype)


def _reserve(
  file: pathlib.Path, bits: Any, shape: tuple[int, ...]
) -> np.memmap:
  """Creates an array file whose disk space is reserved.

  Writing to a memory map without disk space kills the process.
  """
  try:
    with files.name_path_in_errors(file):
      array = np.lib.format.open_memmap(file, 'w+', bits, shape)
      # Not every system can reserve space.
      if hasattr(os, 'posix_fallocate'):
        with file.open('r+b') as out:
          os.posix_fallocate(out.fileno(), 0, file.stat().st_size)
  except BaseException:
    file.unlink(missing_ok=True)
    raise
  return array


def draft_logits(
  model: language.LanguageModel,
  hidden: Float[Array, '*B D'],
  table: Float[Array, 'n D'],
) -> Float[Array, '*B n']:
  """Computes logits of some tokens from hidden states."""
  logits = jnp.einsum(
    '...D,nD->...n',
    hidden.astype(table.dtype),
    table,
    preferred_element_type=jnp.float32,
  )
  cap = model.module.config.final_logit_softcap
  return logits if cap is None else jnp.tanh(logits / cap) * cap


def prepare(
  config: ConfigDict, verifier: checkpoints.Checkpoint, workdir: pathlib.Path
) -> DistillationData:
  """Lets the verifier answer prompts and read rows of documents."""
  documents = texts.load_documents(config)
  fields = {name: config[name] for name in _DATA_FIELDS}
  fields['text'] = records.digest(documents)
  held_out = documents[: config.held_out]
  excluded = {x.prompt or x.answer for x in held_out}
  # Held-out prompts are not learned from, with whatever answer.
  documents = [
    x
    for x in documents[config.held_out :]
    if (x.prompt or x.answer) not in excluded
  ]
  pack = functools.partial(
    texts.pack_rows, config, tokenizer=verifier.tokenizer
  )
  # Before the verifier answers, so that short rows are refused at once.
  validation_rows = pack([held_out], count=_VALIDATION_ROWS, seed='held_out')
  if not validation_rows.mask.any():
    raise ValueError(
      f'row_length: rows of {config.row_length} tokens have no room for an'
      ' answer after a worked example; give a larger number.'
    )
  document_sets = [
    documents,
    *_answered_by_verifier(config, documents, workdir, fields),
  ]
  train_rows = pack(document_sets, count=config.texts, seed='train')
  reader = verifier._replace(params=cast(config.dtype, verifier.params))
  batches = [
    DistillationBatch(*rows, load_hidden(workdir / name, reader, rows))
    for name, rows in (
      ('train.npy', train_rows),
      ('held_out.npy', validation_rows),
    )
  ]
  tokenizer = verifier.tokenizer
  required = {*tokenizer.stops, *tokenizer.encode(texts.SEPARATOR)}
  draft_vocab_ids = texts.frequent_tokens(
    document_sets, tokenizer, config.vocabulary, [*required]
  )
  return DistillationData(*batches, draft_vocab_ids, held_out)


def _answered_by_verifier(
  config: ConfigDict,
  documents: Sequence[texts.Document],
  workdir: pathlib.Path,
  fields: dict[str, Any],
) -> list[list[texts.Document]]:
  """Returns documents with the verifier's answers, a set per temperature."""
  prompts = texts.few_shot_prompts(config, documents, config.answers, 'answers')
  file = workdir / 'answers.jsonl'
  records.claim(workdir / _DATA_FILE, fields, 'training', file.exists())
  temperatures = tuple(config.temperatures)

  def temperature_index(number: int) -> int:
    # Chunks of prompts take the temperatures in turn.
    return number // texts.CHUNK_SIZE % len(temperatures)

  answers = texts.resume_answers(
    file,
    [prompt for prompt, _ in prompts],
    _answerer(config, temperature_index),
  )
  answered: list[list[texts.Document]] = [[] for _ in temperatures]
  for i, (_, document) in enumerate(prompts):
    # A document with an empty answer means one without an answer.
    if answers[i] or not document.answer:
      answered[temperature_index(i)].append(
        document._replace(answer=answers[i])
      )
  return [*filter(None, answered)]


def _answerer(
  config: ConfigDict, temperature_index: Callable[[int], int]
) -> Callable[[Sequence[str], int], list[str]]:
  """Returns the function by which the verifier answers chunks of prompts."""

  @functools.cache
  def sampler_at(temperature: float) -> sampler.Sampler:
    model = checkpoints.load_model(config.verifier)
    options = DecodingConfig(gamma=0, temperature=temperature)
    return sampler.Sampler(model, config=options)

  def answer(prompts: Sequence[str], first: int) -> list[str]:
    temperature = config.temperatures[temperature_index(first)]
    answers = sampler_at(temperature).sample(
      prompts,
      max_new_tokens=config.answer_length,
      seed=config.seed + first,
      stop_strings=('\n',),
    )
    return [answer.text for answer in answers]

  return answer
