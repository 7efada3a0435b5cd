"""Distillation data: training rows, and hidden states of the verifier on them.

The last hidden state at a position determines the verifier's distribution, and
takes a thousandth of the space of its logits. The states are computed once and
stored in the workdir.
"""

import functools
import hashlib
import math
import pathlib
from collections.abc import Sequence
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


def read_rows(
  verifier: checkpoints.Checkpoint,
  rows: texts.Rows,
  dtype: str,
  workdir: pathlib.Path,
) -> DistillationBatch:
  """Returns rows with their hidden states, computing those not in the workdir.

  Their file is named by all that they are computed from.
  """
  model, params = verifier.model, cast(dtype, verifier.params)
  inputs = hashlib.sha256(decisions.fingerprint(params).encode())
  for array in rows:
    inputs.update(np.ascontiguousarray(array).tobytes())
  file = workdir / f'hidden-{inputs.hexdigest()[:16]}.bin'
  shape = (*rows.positions.shape, model.hidden_size(params))
  states_dtype, count = model.dtype(params), len(rows.tokens)
  # numpy has no bfloat16, whose bits are stored instead.
  bits = np.uint16 if states_dtype == jnp.bfloat16 else np.float32
  row_bytes = math.prod(shape[1:]) * np.dtype(bits).itemsize
  compute = jax.jit(functools.partial(hidden_at, model))
  with files.name_path_in_errors(file), file.open('ab') as out:
    done = file.stat().st_size // row_bytes
    if done < count:
      # After an interruption, the last batch may be incomplete.
      done -= done % _BATCH_SIZE
      out.truncate(done * row_bytes)
    with cli.progress(count, 'reading texts', initial=done) as bar:
      while done < count:
        indices = np.arange(done, min(done + _BATCH_SIZE, count))
        # Repeats rows of the last batch, which would be compiled for its size.
        batch = np.resize(indices, _BATCH_SIZE)
        hidden = compute(params, rows.tokens[batch], rows.positions[batch])
        out.write(np.asarray(hidden).view(bits)[: len(indices)].tobytes())
        done += len(indices)
        bar.update(len(indices))
  states = np.memmap(file, bits, 'r', shape=shape).view(states_dtype)
  return DistillationBatch(*rows, states)


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
  tokenizer = verifier.tokenizer
  pack = functools.partial(texts.pack_rows, config, tokenizer=tokenizer)
  # Before the verifier answers, so that short rows are refused at once.
  validation_rows = pack([held_out], count=_VALIDATION_ROWS, seed='held_out')
  if not validation_rows.mask.any():
    raise ValueError(
      f'row_length: rows of {config.row_length} tokens have no room for an'
      ' answer after a worked example; give a larger number.'
    )
  answered = _answered_by_verifier(config, documents, workdir, fields)
  document_sets = [documents, *answered]
  train_rows = pack(document_sets, count=config.texts, seed='train')
  required = {*tokenizer.stops, *tokenizer.encode(texts.SEPARATOR)}
  return DistillationData(
    *(
      read_rows(verifier, rows, config.dtype, workdir)
      for rows in (train_rows, validation_rows)
    ),
    texts.frequent_tokens(
      document_sets, tokenizer, config.vocabulary, [*required]
    ),
  )


def _answered_by_verifier(
  config: ConfigDict,
  documents: Sequence[texts.Document],
  workdir: pathlib.Path,
  fields: dict[str, Any],
) -> list[list[texts.Document]]:
  """Returns documents with the verifier's answers, a set per temperature."""
  prompts = texts.few_shot_prompts(config, documents, config.answers, 'answers')
  file = workdir / 'answers.json'
  records.claim(workdir / _DATA_FILE, fields, 'training', file.exists())
  temperatures = tuple(config.temperatures)

  def temperature_index(number: int) -> int:
    # Chunks of prompts take the temperatures in turn.
    return number // texts.CHUNK_SIZE % len(temperatures)

  @functools.cache
  def sampler_at(temperature: float) -> sampler.Sampler:
    model = checkpoints.load_model(config.verifier)
    options = DecodingConfig(gamma=0, temperature=temperature)
    return sampler.Sampler(model, config=options)

  def answer(prompts: Sequence[str], first: int) -> list[str]:
    answers = sampler_at(temperatures[temperature_index(first)]).sample(
      prompts,
      max_new_tokens=config.answer_length,
      seed=config.seed + first,
      stop_strings=('\n',),
    )
    return [answer.text for answer in answers]

  answers = texts.resume_answers(file, [x for x, _ in prompts], answer)
  answered: list[list[texts.Document]] = [[] for _ in temperatures]
  for i, (text, (_, document)) in enumerate(zip(answers, prompts, strict=True)):
    # A document with an empty answer means one without an answer.
    if text or not document.answer:
      answered[temperature_index(i)].append(document._replace(answer=text))
  return [*filter(None, answered)]


# With more rows at a time, logits over a large vocabulary exceed a CPU's cache.
_PROMPTS = 8


def measure_acceptance(
  verifier: checkpoints.Checkpoint,
  drafter: Any,
  prompts: Sequence[str],
  gamma: int,
  **sample_options: Any,
) -> dict[str, dict[str, float]]:
  """Measures acceptance and tokens per call of strict decoding."""
  figures = {}
  options = dict(method='speed', lenience=0.0, gamma=gamma, batch_size=_PROMPTS)
  for temperature in (1.0, 0.0):
    config = DecodingConfig(**options, temperature=temperature)
    strict_sampler = sampler.Sampler(verifier, drafter, config=config)
    answers = strict_sampler.sample(prompts, **sample_options)
    accepted, examined, calls = (
      sum(answer.counts[name] for answer in answers)
      for name in ('accepted', 'examined', 'verifier_calls')
    )
    emitted = sum(len(answer.logprobs) for answer in answers)
    figures[f'temperature {temperature:g}'] = {
      'acceptance': accepted / examined,
      'tokens per verifier call': emitted / calls,
    }
  return figures
