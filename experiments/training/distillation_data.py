"""Distillation data: texts packed into rows, and the verifier's states on them.

A document is a prompt and its answer, of the user or of the verifier. Training
rows are documents joined as in few-shot prompts, so that the positions of a row
are like those at which the drafter is used.

The last hidden state at a position determines the verifier's distribution, and
takes a thousandth of the space of its logits. The states are computed once and
stored in the workdir.
"""

import collections
import functools
import hashlib
import itertools
import json
import math
import pathlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cascades import decisions, files
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language, tensor_files, tokenizers
from cascades.sampler import sampler
from experiments import cli, records
from experiments.tasks import TASKS, Example, file_task
from experiments.tasks.answer_metrics import accepted_answers

# Rows whose hidden states are computed at a time.
_BATCH_SIZE = 4
# Prompts whose answers are a file.
CHUNK_SIZE = 256
# Text between two documents.
SEPARATOR = '\n\n'


class Document(NamedTuple):
  """A prompt and its answer."""

  prompt: str
  answer: str

  @property
  def text(self) -> str:
    """The prompt followed by the answer."""
    return self.prompt + self.answer


def load_documents(config: ConfigDict) -> list[Document]:
  """Loads the documents of a config, shuffled by its seed."""
  if not config.text:
    raise ValueError(
      'text: no file of training texts is given; give --config.text=..., a file'
      ' with rows of prompt and reference, or of the published sets that'
      ' --config.tasks names.'
    )
  examples: list[Example] = []
  if not config.tasks:
    task = file_task({'file': {'path': config.text}})
    examples += task.load(num_examples=None)
  for name in config.tasks:
    if not TASKS[name].source:
      names = ', '.join(name for name, task in TASKS.items() if task.source)
      raise ValueError(f'tasks: must be of {names}, got {name!r}.')
    examples += TASKS[name].load(
      split='train', path=config.text, shots=0, num_examples=None
    )
  documents = []
  for example in examples:
    # A text may have no answer.
    answer = ''.join(f' {x}' for x in accepted_answers(example.reference)[:1])
    documents.append(Document(str(example.prompt), answer))
  if len(documents) < 2 * config.held_out:
    raise ValueError(
      f'text: {config.text} has {len(documents)} documents; give'
      f' {2 * config.held_out} or more, since {config.held_out} are held out.'
    )
  random.Random(f'{config.seed}/documents').shuffle(documents)
  return documents


def few_shot_prompts(
  config: ConfigDict, documents: Sequence[Document], count: int, seed: str
) -> list[tuple[str, Document]]:
  """Draws documents and puts worked examples before their prompts.

  A document is drawn again only if all others were.
  """
  if len(documents) <= config.shots:
    raise ValueError(
      f'shots: {config.shots} examples and a prompt cannot be chosen from'
      f' {len(documents)} documents ({seed}); give fewer shots, or more.'
    )
  rng = random.Random(f'{config.seed}/{seed}')
  prompts, indices = [], range(len(documents))
  used: set[int] = set()
  example_indices: list[int] = []
  for i in range(count):
    if i % CHUNK_SIZE == 0:
      # Many prompts share the examples, so that their cache is reused.
      example_indices = rng.sample(indices, config.shots)
    if len(used) + config.shots >= len(documents):
      used.clear()
    # A prompt that is also an example would contain its own answer.
    while (index := rng.choice(indices)) in example_indices or index in used:
      continue
    used.add(index)
    examples = [documents[number].text for number in example_indices]
    document = documents[index]
    prompts.append((SEPARATOR.join([*examples, document.prompt]), document))
  return prompts


def held_out_prompts(
  config: ConfigDict, documents: Sequence[Document]
) -> list[str]:
  """Returns the held-out prompts on which a drafter is evaluated."""
  if config.eval_examples < 1:
    raise ValueError(
      f'eval_examples: must be 1 or more, got {config.eval_examples}.'
    )
  held_out = documents[: config.held_out]
  pairs = few_shot_prompts(config, held_out, config.eval_examples, 'held out')
  return [prompt for prompt, _ in pairs]


class Rows(NamedTuple):
  """Training rows of joined documents, and the positions to train at.

  Attributes:
    tokens: Token ids, [B, L]; a row begins with the begin-of-text id.
    positions: Positions before a token of an answer, [B, N], ascending; shorter
      rows repeat their last position.
    mask: True for positions that are not padding, [B, N].
    hidden: Last hidden states of the verifier at the positions, [B, N, D].
  """

  tokens: Any
  positions: Any
  mask: Any
  hidden: Any = None

  def sample(self, config: ConfigDict, step: int) -> 'Rows':
    """Returns the rows of a training step, drawn by the config's seed."""
    rng = np.random.default_rng((config.seed, step))
    indices = rng.choice(len(self.hidden), config.rows, replace=False)
    return Rows(*(field[indices] for field in self))


def pack_rows(
  config: ConfigDict,
  document_sets: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  count: int,
  seed: str,
) -> Rows:
  """Packs documents in random order into rows, each cut at its end.

  Positions are those of answers, which drafters write. All positions of a
  document without an answer are used; positions of a row's first document,
  which has no examples before it, are used only without `shots`.
  """
  tokens = np.zeros((count, config.row_length), np.int32)
  positions_by_row = []
  for i, row in enumerate(tokens):
    rng = random.Random(f'{config.seed}/{seed}/{i}')
    ids, positions = [tokenizers.BOS], []
    while len(ids) < len(row):
      document = rng.choice(rng.choice(document_sets))
      new = tokenizer.encode(document.text + SEPARATOR)
      # Tokens that the document and its prompt begin with.
      prompt = tokenizer.encode(document.prompt)
      is_same = (x == y for x, y in zip(new, prompt, strict=False))
      start = sum(itertools.takewhile(bool, is_same))
      if not document.answer:
        start = 0
      if len(ids) > 1 or not config.shots:
        # Includes the token after the answer, which ends it.
        positions += range(len(ids) + start - 1, len(ids) + len(new) - 1)
      ids += new
    row[:] = ids[: len(row)]
    positions_by_row.append([x for x in positions if x < len(row) - 1])
  counts = np.array([[len(positions)] for positions in positions_by_row])
  length = max(map(len, positions_by_row))
  padded = [x + (x[-1:] or [0]) * (length - len(x)) for x in positions_by_row]
  return Rows(tokens, np.int32(padded), np.arange(length) < counts)


def frequent_tokens(
  document_sets: Sequence[Sequence[Document]],
  tokenizer: tokenizers.Tokenizer,
  count: int,
  required: Sequence[int],
) -> np.ndarray:
  """Returns the most frequent tokens of answers, ascending."""
  shares: dict[int, float] = collections.defaultdict(float)
  for documents in document_sets:
    token_counts = collections.Counter(
      token
      for document in documents
      for token in tokenizer.encode(document.answer or document.prompt)
    )
    for token, n in token_counts.items():
      shares[token] += n / token_counts.total()
  # Of equally frequent tokens, the lower id comes first.
  order = sorted({*shares} - {*required}, key=lambda x: (-shares[x], x))
  ids = [*required, *order[: count - len(required)]]
  return np.sort(np.array(ids, np.int32))


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


def cast(dtype: Any, tree: Any) -> Any:
  """Converts all arrays of a tree to a dtype."""
  return jax.tree.map(lambda x: x.astype(dtype), tree)


def read_rows(
  verifier: checkpoints.Checkpoint,
  rows: Rows,
  dtype: str,
  workdir: pathlib.Path,
) -> Rows:
  """Returns rows with their hidden states, computing those not in the workdir.

  Their file is named by all that they are computed from.
  """
  model, params = verifier.model, cast(dtype, verifier.params)
  inputs = hashlib.sha256(decisions.fingerprint(params).encode())
  for array in (rows.tokens, rows.positions, rows.mask):
    inputs.update(np.ascontiguousarray(array).tobytes())
  file = workdir / f'hidden-{inputs.hexdigest()[:16]}.bin'
  shape = (*rows.positions.shape, model.hidden_size(params))
  states_dtype, count = model.dtype(params), len(rows.tokens)
  row_bytes = math.prod(shape[1:]) * states_dtype.itemsize
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
        out.write(np.asarray(hidden[: len(indices)]).tobytes())
        done += len(indices)
        bar.update(len(indices))
  states = np.memmap(file, states_dtype, 'r', shape=shape)
  return rows._replace(hidden=states)


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
) -> tuple[Rows, np.ndarray]:
  """Returns training rows, and the ids of tokens to draft.

  The verifier answers prompts, then it reads rows. Its layout is gemma's, which
  is faster for long rows.
  """
  checkpoints.check_dtype(config.dtype, tensor_files.FLOATS)
  if config.rows > config.texts:
    raise ValueError(
      f'rows: must be at most the number of texts, {config.texts}, got'
      f' {config.rows}.'
    )
  if not config.temperatures:
    raise ValueError('temperatures: no temperature is given; give one or more.')
  documents = load_documents(config)
  # Before hours of training, after which a drafter is evaluated on them.
  held_out_prompts(config, documents)
  held_out = documents[: config.held_out]
  excluded = {x.prompt for x in held_out}
  # Held-out prompts are not learned from, with whatever answer.
  documents = documents[config.held_out :]
  documents = [x for x in documents if x.prompt not in excluded]
  tokenizer = verifier.tokenizer
  pack = functools.partial(pack_rows, config, tokenizer=tokenizer, seed='train')
  # Before the verifier answers.
  prompts = few_shot_prompts(config, documents, config.answers, 'answers')
  if not pack([documents], count=8).mask.any():
    raise ValueError(
      f'row_length: rows of {config.row_length} tokens have no room for an'
      ' answer after a worked example; give a larger number.'
    )
  answered = _answered_by_verifier(config, verifier, prompts, workdir)
  document_sets = [documents, *answered]
  required = {*tokenizer.stops, *tokenizer.encode(SEPARATOR)}
  ids = frequent_tokens(
    document_sets, tokenizer, config.vocabulary, [*required]
  )
  rows = pack(document_sets, count=config.texts)
  return read_rows(verifier, rows, config.dtype, workdir), ids


def _answered_by_verifier(
  config: ConfigDict,
  verifier: checkpoints.Checkpoint,
  prompts: Sequence[tuple[str, Document]],
  workdir: pathlib.Path,
) -> list[list[Document]]:
  """Returns documents with the verifier's answers, a set per temperature."""
  # Chunks of prompts take the temperatures in turn, and have a file in a
  # folder that is named by all that determines the answers.
  temperatures = tuple(config.temperatures)
  options = config.verifier, config.answer_length, config.seed
  weights = decisions.fingerprint(verifier.params)
  name = records.digest([prompts, temperatures, weights, *options])[:16]
  load, answers = functools.cache(checkpoints.load_model), []

  def temperature_of(number: int) -> float:
    return temperatures[number // CHUNK_SIZE % len(temperatures)]

  for first in range(0, len(prompts), CHUNK_SIZE):
    file = workdir / f'answers-{name}/{first}.json'
    if not file.exists():
      options = DecodingConfig(gamma=0, temperature=temperature_of(first))
      chunk = sampler.Sampler(load(config.verifier), config=options).sample(
        [prompt for prompt, _ in prompts[first : first + CHUNK_SIZE]],
        max_new_tokens=config.answer_length,
        seed=config.seed + first,
        stop_strings=('\n',),
      )
      records.write_text(file, json.dumps([answer.text for answer in chunk]))
    answers += json.loads(file.read_text('utf-8'))
  answered: dict[float, list[Document]] = {x: [] for x in temperatures}
  for i, (text, (_, document)) in enumerate(zip(answers, prompts, strict=True)):
    # A document with an empty answer means one without an answer.
    if text or not document.answer:
      answered[temperature_of(i)].append(document._replace(answer=text))
  return [*filter(None, answered.values())]
