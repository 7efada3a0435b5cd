"""Continuous batching: the row of a finished answer takes the next prompt.

An answer does not depend on the rows beside it: its random numbers come from
its own key, and no row of a batch reads another. So `run` may decode in any
order, and yields answers as they finish:

  fill     Prompts are read a group at a time, the longest first, and put into
           free rows, once for each of their leniences. What all prompts begin
           with, such as worked examples, is read once; a conversation begins
           with what its row has read.
  decode   The compiled loop runs until enough rows are free to be filled.
  narrow   When no prompts are left, free rows are dropped, if the remaining
           rows may decode for longer than a compilation takes.
  widen    Caches start at the length that short answers need, and double when
           a row needs more.
  halve    If the device's memory does not suffice, unfinished answers are
           decoded again in a batch of half the rows.

Arrays come in few sizes (`bucket`, `width`), so that few programs are compiled.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from cascades import decoding
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import sharding

# Blocks between two polls of the rows, where a stop string may end them.
POLL_INTERVAL_BLOCKS = 8
# Prompts are padded to at least this. Padding them to the slots of the smallest
# cache would take as long as decoding a short answer.
MIN_PROMPT_LENGTH = 32
# Slots of the smallest cache. Attending to a few more empty slots costs little;
# compiling another loop takes longer than decoding many short answers.
_MIN_CACHE_LENGTH = 256
# New tokens that the first caches have slots for; longer ones are compiled.
_FIRST_NEW_TOKENS = 256
# Free rows are dropped only if a row may still write so many tokens.
_NARROW_MIN_TOKENS = 256
# Fewest first tokens, shared by all prompts, that are read once for all: with
# fewer, one pass over whole prompts is faster than two passes.
_MIN_SHARED_PREFIX = 64
# Returns the length at which a fetched row ends by its text, or None.
FindEnd = Callable[[decoding.Row], int | None]


def bucket(length: int | np.integer, smallest: int = _MIN_CACHE_LENGTH) -> int:
  """Returns the size that a length is padded to: few sizes, little padding.

  256, 384, 512, 768, 1024, ...: powers of two, and one size between each two.
  """
  size = smallest
  while size < length:
    size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
  return size


def width(rows: int, batch_size: int) -> int:
  """Returns the number of rows that a batch is compiled for.

  1, 2, 4, 8, 12, 16, 24, 32, ..., at most `batch_size`: sizes that a few
  devices can divide, with at most a third of the rows empty.
  """
  return min(batch_size, bucket(rows, 1 << min(3, (rows - 1).bit_length())))


@dataclasses.dataclass
class DecodeStats:
  """Time and rows that decoding took.

  Attributes:
    prefill_s: Seconds of reading prompts and of filling rows, compilation
      included.
    decode_s: Seconds of everything else.
    active_rows: Blocks decoded for unfinished rows, summed over rows.
    rows: Blocks decoded for all rows, finished ones included.
    batch_size: Rows at a time, if memory did not suffice for the requested
      number; None if it did.
  """

  prefill_s: float = 0.0
  decode_s: float = 0.0
  active_rows: int = 0
  rows: int = 0
  batch_size: int | None = None


class Job(NamedTuple):
  """One answer to decode."""

  prompt: int
  lenience: int


class BatchRequest(NamedTuple):
  """Prompts to answer, each at every lenience.

  The leniences of a prompt share its key, so that they are paired. A single
  prompt may begin with the tokens of `start`, a row that has read them.
  """

  prompts: Sequence[Sequence[int] | np.ndarray]
  keys: jax.Array
  leniences: Sequence[float] | np.ndarray
  max_new_tokens: int
  return_logits: bool = False
  return_logprobs: bool = False
  find_end: FindEnd | None = None
  start: decoding.Row | None = None


@dataclasses.dataclass(frozen=True)
class Engine:
  """The models and options that a batch is decoded with."""

  step_config: decoding.StepConfig
  params: decoding.Params
  sampling: processing.SamplingParams
  stop_tokens: Int[np.ndarray, 'K'] | Int[Array, 'K']
  mesh: jax.sharding.Mesh | None = None

  def shard(self, rows: PyTree) -> PyTree:
    """Returns rows, or their inputs, split over the mesh; copies if needed."""
    return rows if self.mesh is None else sharding.shard_rows(rows, self.mesh)

  def prefill(
    self,
    prompts: Sequence[Sequence[int] | np.ndarray],
    keys: jax.Array,
    limits: Sequence[int] | np.ndarray,
    cache_length: int,
    **recorded: Any,
  ) -> decoding.Row:
    """Reads prompts of similar length; see `decoding.prefill`."""
    inputs = decoding.Prompts(
      *pad(prompts, cache_length), keys, np.asarray(limits, np.int32)
    )
    rows = decoding.prefill(
      self.params,
      # Split as well, or every device would read every prompt.
      self.shard(inputs),
      models=self.step_config.models,
      cache_length=cache_length,
      **recorded,
    )
    return self.shard(rows)

  def resize(self, rows: decoding.Row, cache_length: int) -> decoding.Row:
    """Returns a copy with longer caches; see `decoding.resize_caches`."""
    models = self.step_config.models
    return decoding.resize_caches(
      rows, self.params, models=models, cache_length=cache_length
    )

  def decode(
    self,
    rows: decoding.Row,
    active_threshold: int = 0,
    max_blocks: int = 2**30,
  ) -> tuple[decoding.Row, Int[Array, '']]:
    """Runs the compiled loop; see `decoding.decode`."""
    return decoding.decode(
      # One layout, so that nothing is compiled for another.
      self.shard(rows),
      self.params,
      self.sampling,
      self.stop_tokens,
      # NumPy numbers, so that every call has the same types.
      active_threshold=np.int32(active_threshold),
      max_blocks=np.int32(max_blocks),
      step_config=self.step_config,
    )

  def cache_length(self, length: int, max_new_tokens: int) -> int:
    """Returns cache slots for a prompt and its new tokens."""
    return bucket(length + max_new_tokens + self.step_config.cache_headroom)

  def logits_length(self, request: Any) -> int:
    """Returns the tokens whose logits a row has room for; 0 if none."""
    length = request.max_new_tokens + self.step_config.gamma + 1
    return bucket(length, MIN_PROMPT_LENGTH) if request.return_logits else 0


def pad(
  prompts: Sequence[Sequence[int] | np.ndarray],
  max_length: int,
  smallest: int = MIN_PROMPT_LENGTH,
) -> tuple[np.ndarray, np.ndarray]:
  """Pads prompts on the right to one size."""
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  padded = np.zeros(
    (len(prompts), min(bucket(int(lengths.max()), smallest), max_length)),
    np.int32,
  )
  for row, prompt in zip(padded, prompts, strict=True):
    row[: len(prompt)] = prompt
  return padded, lengths


def shared_prefix(
  prompts: Sequence[Sequence[int] | np.ndarray],
) -> Sequence[int] | np.ndarray:
  """Returns what all prompts begin with and continue after; empty if short."""
  if len(prompts) < 2:
    return ()
  longest = min(map(len, prompts)) - 1
  is_same = np.ones(longest, bool)
  for prompt in prompts:
    is_same &= np.asarray(prompt[:longest]) == np.asarray(prompts[0][:longest])
  length = longest if is_same.all() else int(is_same.argmin())
  return prompts[0][: length if length >= _MIN_SHARED_PREFIX else 0]


def fetch(rows: decoding.Row) -> decoding.Row:
  """Copies the small fields of rows to the host: no caches, no logits."""
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None, logits=None
  )
  return sharding.fetch(rows)


class RowBatch:
  """Rows that are decoded together, and prompts that wait for free rows."""

  def __init__(
    self,
    engine: Engine,
    request: BatchRequest,
    pending: Collection[Job],
    num_rows: int,
  ):
    self._engine, self._request = engine, request
    self._lengths = np.array([len(prompt) for prompt in request.prompts])
    longest, new = int(self._lengths.max()), request.max_new_tokens
    smallest = 0 if request.start is None else request.start.tokens.shape[-1]
    self.cache_length, self._max_cache_length = (
      max(smallest, engine.cache_length(longest, count))
      for count in (min(new, _FIRST_NEW_TOKENS), new)
    )
    self.jobs: list[Job | None] = [None] * num_rows
    # None before the first fill, and the first poll.
    self.rows: Any = None
    self._fetched: Any = None
    # The longest first, so that groups are of one length, and caches need not
    # grow for a prompt.
    order = np.argsort(-self._lengths, kind='stable').tolist()
    num_leniences = len(request.leniences)
    self._jobs_of_prompt = {
      i: [job for j in range(num_leniences) if (job := Job(i, j)) in pending]
      for i in order
    }
    # Few at a time: prompts that were read wait in memory for free rows.
    self._group = min(len(order), max(1, num_rows // (2 * num_leniences)))
    self._groups = itertools.batched(
      (i for i, jobs in self._jobs_of_prompt.items() if jobs), self._group
    )
    self._recorded = dict(
      logits_length=engine.logits_length(request),
      with_logprobs=request.return_logprobs,
    )
    self._prefix: Any = None
    self._prefix_length = len(shared_prefix(request.prompts))
    if request.start is not None:
      self._prefix_length = int(request.start.length[0])
      # Those of earlier answers are not returned again.
      logits = logprobs = None
      if length := self._recorded['logits_length']:
        size = engine.step_config.models.verifier.vocab_size
        logits = jnp.zeros((1, length, size), jnp.float32)
      if request.return_logprobs:
        logprobs = jnp.zeros((*request.start.tokens.shape, 3))
      self._prefix = request.start.replace(logits=logits, law_logprobs=logprobs)
    # Prompts of a group, those of their jobs that wait, and their rows.
    self.waiting_rows: Any = None
    self._indices: dict[int, int] = {}
    self._waiting: list[Job] = []
    self._num_unplaced = len(pending)
    self.exhausted = False

  @property
  def active(self) -> dict[int, Job]:
    """Unfinished answers by the index of their row."""
    return {i: job for i, job in enumerate(self.jobs) if job is not None}

  def fill(self) -> None:
    """Puts prompts into free rows, and reads them as needed."""
    while None in self.jobs and not self.exhausted:
      if not self._waiting:
        self._read()
      if self._waiting:
        self._refill()

  def _read(self) -> None:
    """Reads the next group of prompts; `exhausted` if there is none."""
    group = next(self._groups, None)
    if group is None:
      self.exhausted = True
      return
    # The last group is filled up: another shape would be compiled.
    prompts = np.array([*group, *[group[0]] * (self._group - len(group))])
    engine, request, cache_length = (
      self._engine,
      self._request,
      self.cache_length,
    )
    limits = self._lengths[prompts] + request.max_new_tokens
    # Compiled, unlike `keys[prompts]`.
    keys = decoding.gather_rows(request.keys, prompts)
    rest = [request.prompts[i][self._prefix_length :] for i in prompts]
    if self._prefix_length:
      if self._prefix is None:
        prefix = request.prompts[0][: self._prefix_length]
        key = decoding.gather_rows(keys, np.zeros(1, int))
        self._prefix = engine.prefill(
          [prefix], key, [len(prefix)], cache_length, **self._recorded
        )
      elif self._prefix.tokens.shape[-1] < cache_length:
        self._prefix = engine.resize(self._prefix, cache_length)
      # Copies: the prefix is continued again.
      rows = decoding.gather_rows(self._prefix, np.zeros_like(prompts))
      padded = pad(rest, cache_length - self._prefix_length)
      rows = decoding.extend(
        engine.shard(rows.replace(key=keys)),
        engine.params,
        *engine.shard((*padded, limits.astype(np.int32))),
        models=engine.step_config.models,
      )
      self.waiting_rows = engine.shard(rows)
    else:
      self.waiting_rows = engine.prefill(
        rest, keys, limits, cache_length, **self._recorded
      )
    self._indices = {prompt: index for index, prompt in enumerate(group)}
    self._waiting = [job for i in group for job in self._jobs_of_prompt[i]]

  def _refill(self) -> None:
    """Puts prompts that were read into free rows."""
    size, leniences = len(self.jobs), self._request.leniences
    if self.rows is None:
      rows = decoding.gather_rows(self.waiting_rows, np.zeros(size, np.int32))
      # A NumPy array: a JAX call outside of compiled code takes longer.
      self.rows = rows.replace(done=np.ones(size, bool))
    slots = [slot for slot, job in enumerate(self.jobs) if job is None]
    jobs = self._waiting[: len(slots)]
    self._waiting = self._waiting[len(slots) :]
    for slot, job in zip(slots, jobs, strict=False):
      self.jobs[slot] = job
    self.rows = decoding.refill_rows(
      self.rows,
      self.waiting_rows,
      slots=_padded(slots[: len(jobs)], size),
      sources=_padded([self._indices[job.prompt] for job in jobs], size),
      leniences=_padded(
        [leniences[job.lenience] for job in jobs], size, np.float32
      ),
      count=np.int32(len(jobs)),
    )
    self._num_unplaced -= len(jobs)
    if not self._num_unplaced:
      # A long context is not held twice while its last answers are decoded.
      self.waiting_rows = self._prefix = None

  def narrow(self) -> None:
    """Drops free rows, if the remaining rows may run for long."""
    slots = list(self.active)
    longest = (self._fetched.limit - self._fetched.length)[slots].max()
    if longest < _NARROW_MIN_TOKENS:
      return
    size = width(len(slots), len(self.jobs))
    rows = decoding.gather_rows(self.rows, _padded(slots, size))
    self.rows = rows.replace(done=rows.done | (np.arange(size) >= len(slots)))
    self.jobs = [self.jobs[slot] for slot in slots]
    self.jobs += [None] * (size - len(self.jobs))

  def decode(self, active_threshold: int, max_blocks: int) -> None:
    """Dispatches the compiled loop once."""
    self.rows, self._blocks = self._engine.decode(
      self.rows, active_threshold, max_blocks
    )

  def poll(self, stats: DecodeStats) -> list[tuple[Job, decoding.Row]]:
    """Waits for the loop, returns active rows and frees the finished ones."""
    find_end, answers = self._request.find_end, []
    self._fetched = fetched = fetch(self.rows)
    done = fetched.done.copy()
    stats.rows += int(self._blocks) * len(self.jobs)
    for slot, job in self.active.items():
      row = jax.tree.map(lambda x, slot=slot: x[slot], fetched)
      end = find_end(row) if find_end else None
      if end is not None:
        row = row.replace(length=np.int32(end), done=np.bool_(True))
      # A text may have ended the answer before the fault.
      if row.fault.position < row.length:
        faults.check(row.fault, f'prompt {job.prompt}')
      if row.done:
        stats.active_rows += int(row.blocks)
        self.jobs[slot], done[slot] = None, True
      if self.rows.logits is not None and row.done:
        logits = self.rows.logits[slot, : row.length - row.prompt_length]
        row = row.replace(logits=sharding.fetch(logits))
      answers.append((job, row))
    if find_end:
      self.rows = self.rows.replace(done=self.rows.done | done)
    return answers

  def widen(self) -> None:
    """Doubles the caches if a row needs it."""
    headroom = self._engine.step_config.cache_headroom
    longer = min(2 * self.cache_length, self._max_cache_length)
    fits = int(self._fetched.length.max()) + headroom <= self.cache_length
    if fits or longer == self.cache_length:
      return
    self.cache_length = longer
    self.rows = self._engine.resize(self.rows, longer)
    if self._waiting:
      self.waiting_rows = self._engine.resize(self.waiting_rows, longer)


@contextlib.contextmanager
def _timed(stats: DecodeStats, field: str) -> Iterator[None]:
  """Adds the seconds of the body of the `with` to a field."""
  start = time.perf_counter()
  yield
  seconds = time.perf_counter() - start
  setattr(stats, field, getattr(stats, field) + seconds)


def run(
  engine: Engine, request: BatchRequest, batch_size: int, stats: DecodeStats
) -> Iterator[tuple[Job, decoding.Row]]:
  """Decodes every prompt at every lenience; yields each as it finishes."""
  pending = {
    Job(i, j)
    for i in range(len(request.prompts))
    for j in range(len(request.leniences))
  }
  while pending:
    num_rows = width(len(pending), batch_size)
    try:
      for job, row, _ in _run(engine, request, pending, num_rows, stats=stats):
        if row.done:
          pending.remove(job)
          yield job, row
    except jax.errors.JaxRuntimeError as e:
      # Other processes do not know that this one needs a smaller batch.
      is_alone = jax.process_count() == 1
      if 'RESOURCE_EXHAUSTED' not in str(e) or num_rows == 1 or not is_alone:
        raise
      stats.batch_size = batch_size = num_rows // 2


def decode_single(
  engine: Engine,
  request: BatchRequest,
  row: decoding.Row | None,
  max_blocks: int | None,
  *,
  stats: DecodeStats,
) -> Iterator[tuple[decoding.Row, decoding.Row | None]]:
  """Decodes one answer, which may continue an earlier row.

  Yields the answer so far after each `max_blocks` blocks, or only at its end if
  None; at its end also the row that may be continued, unless a stop string may
  have cut it.
  """
  if row is not None:
    text = np.asarray(row.tokens[0])[: int(row.length[0])]
    text = np.concatenate([text, request.prompts[0]])
    request = request._replace(prompts=[text], start=row)
  for _, so_far, rows in _run(
    engine, request, {Job(0, 0)}, 1, stats=stats, max_blocks=max_blocks
  ):
    if so_far.done and not request.find_end:
      yield so_far, rows.replace(logits=None)
    elif so_far.done or max_blocks:
      yield so_far, None


def _run(
  engine: Engine,
  request: BatchRequest,
  pending: set[Job],
  num_rows: int,
  *,
  stats: DecodeStats,
  max_blocks: int | None = None,
) -> Iterator[tuple[Job, decoding.Row, decoding.Row]]:
  """Decodes jobs, at first in `num_rows` rows; yields rows that were polled."""
  batch = RowBatch(engine, request, pending, num_rows)
  if max_blocks is None:
    max_blocks = POLL_INTERVAL_BLOCKS if request.find_end else 2**30
  while True:
    with _timed(stats, 'prefill_s'):
      batch.fill()
    num_active = len(batch.active)
    if not num_active:
      return
    with _timed(stats, 'decode_s'):
      size, active_threshold = len(batch.jobs), 0
      if not batch.exhausted:
        active_threshold = size - max(1, size // 16)
      elif num_active > size // 4:
        active_threshold = size // 4
      else:
        batch.narrow()
      batch.decode(active_threshold, max_blocks)
    # Not before the loop is dispatched: dispatching takes a while too.
    with _timed(stats, 'prefill_s'):
      jax.block_until_ready(batch.waiting_rows)
    with _timed(stats, 'decode_s'):
      answers = batch.poll(stats)
    for job, row in answers:
      yield job, row, batch.rows
    with _timed(stats, 'decode_s'):
      batch.widen()


def _padded(values: Sequence, size: int, dtype: type = np.int32) -> np.ndarray:
  """Returns values followed by zeros."""
  array = np.zeros(size, dtype)
  array[: len(values)] = values
  return array
