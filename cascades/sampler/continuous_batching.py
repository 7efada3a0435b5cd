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
"""

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import decoding
from cascades.decoding import faults
from cascades.models import sharding
from cascades.sampler.batching import (
  POLL_INTERVAL_BLOCKS,
  BatchRequest,
  DecodeStats,
  Engine,
  Job,
  width,
)

# New tokens that the first caches have slots for; longer ones are compiled.
_FIRST_NEW_TOKENS = 256
# Free rows are dropped only if a row may still write so many tokens.
_NARROW_MIN_TOKENS = 256
# Fewest first tokens, shared by all prompts, that are read once for all: with
# fewer, one pass over whole prompts is faster than two passes.
_MIN_SHARED_PREFIX = 64


def fetch(rows: decoding.Row) -> decoding.Row:
  """Copies the small fields of rows to the host: no caches, no logits."""
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None, logits=None
  )
  return sharding.fetch(rows)


class RowBatch:
  """Rows that are decoded together."""

  def __init__(
    self,
    engine: Engine,
    request: BatchRequest,
    num_rows: int,
    cache_lengths: Sequence[int],
  ):
    self._engine, self._request = engine, request
    self.cache_length, self._max_cache_length = cache_lengths
    # None before the first fill.
    self.rows: Any = None
    self.jobs: list[Job | None] = [None] * num_rows
    self._fetched: Any = None

  @property
  def free(self) -> list[int]:
    """Indices of rows without an answer."""
    return [slot for slot, job in enumerate(self.jobs) if job is None]

  @property
  def active(self) -> dict[int, Job]:
    """Unfinished answers by the index of their row."""
    return {i: job for i, job in enumerate(self.jobs) if job is not None}

  def fill(self, queue: 'PromptQueue') -> None:
    """Puts prompts that were read into free rows."""
    size, leniences, slots = len(self.jobs), self._request.leniences, self.free
    if self.rows is None:
      rows = decoding.gather_rows(queue.rows, np.zeros(size, np.int32))
      # A NumPy array: a JAX call outside of compiled code takes longer.
      self.rows = rows.replace(done=np.ones(size, bool))
    jobs, queue.waiting = (
      queue.waiting[: len(slots)],
      queue.waiting[len(slots) :],
    )
    for slot, job in zip(slots, jobs, strict=False):
      self.jobs[slot] = job
    self.rows = decoding.refill_rows(
      self.rows,
      queue.rows,
      slots=_padded(slots[: len(jobs)], size),
      sources=_padded([queue.indices[job.prompt] for job in jobs], size),
      leniences=_padded(
        [leniences[job.lenience] for job in jobs], size, np.float32
      ),
      count=np.int32(len(jobs)),
    )

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

  def widen(self) -> bool:
    """Doubles the caches if a row needs it; returns True if it did."""
    headroom = self._engine.step_config.cache_headroom
    longer = min(2 * self.cache_length, self._max_cache_length)
    fits = int(self._fetched.length.max()) + headroom <= self.cache_length
    if fits or longer == self.cache_length:
      return False
    self.cache_length = longer
    self.rows = self._engine.resize(self.rows, longer)
    return True


class PromptQueue:
  """Prompts that are read a group at a time and wait for free rows."""

  def __init__(
    self,
    engine: Engine,
    request: BatchRequest,
    pending: Collection[Job],
    num_rows: int,
  ):
    self._engine, self._request = engine, request
    self._lengths = np.array([len(prompt) for prompt in request.prompts])
    # The longest first, so that groups are of one length, and caches need not
    # grow for a prompt.
    order = np.argsort(-self._lengths, kind='stable').tolist()
    num_leniences = len(request.leniences)
    self._jobs = {
      i: [job for j in range(num_leniences) if (job := Job(i, j)) in pending]
      for i in order
    }
    # Few at a time: prompts that were read wait in memory for free rows.
    self._group = min(len(order), max(1, num_rows // (2 * num_leniences)))
    self._groups = itertools.batched(
      (i for i, jobs in self._jobs.items() if jobs), self._group
    )
    self._logits_length = engine.logits_length(request)
    self._prefix: Any = None
    self._prefix_length = _common_prefix_length(request.prompts)
    if request.start is not None:
      self._prefix_length, logits = int(request.start.length[0]), None
      if self._logits_length:
        size = engine.step_config.models.verifier.vocab_size
        logits = jnp.zeros((1, self._logits_length, size), jnp.float32)
      self._prefix = request.start.replace(logits=logits)
    elif self._prefix_length < _MIN_SHARED_PREFIX or len(order) == 1:
      self._prefix_length = 0
    # None before the first group.
    self.rows: Any = None
    self.indices: dict[int, int] = {}
    self.waiting: list[Job] = []
    self.exhausted = False

  def read(self, cache_length: int) -> None:
    """Reads the next group of prompts; `exhausted` if there is none."""
    group = next(self._groups, None)
    if group is None:
      self.exhausted = True
      return
    # The last group is filled up: another shape would be compiled.
    prompts = np.array([*group, *[group[0]] * (self._group - len(group))])
    limits = self._lengths[prompts] + self._request.max_new_tokens
    # Compiled, unlike `keys[prompts]`.
    keys = decoding.gather_rows(self._request.keys, prompts)
    rest = [self._request.prompts[i][self._prefix_length :] for i in prompts]
    if self._prefix_length:
      # Copies: the prefix is continued again.
      rows = decoding.gather_rows(
        self._prefix_row(cache_length), np.zeros_like(prompts)
      )
      self.rows = self._engine.extend(
        rows.replace(key=keys), rest, limits, cache_length - self._prefix_length
      )
    else:
      self.rows = self._engine.prefill(
        rest, keys, limits, cache_length, self._logits_length
      )
    self.indices = {prompt: index for index, prompt in enumerate(group)}
    self.waiting = [job for i in group for job in self._jobs[i]]

  def _prefix_row(self, cache_length: int) -> decoding.Row:
    """Returns one row that has read the shared prefix."""
    if self._prefix is None:
      prompt = self._request.prompts[0][: self._prefix_length]
      key = decoding.gather_rows(self._request.keys, np.zeros(1, int))
      self._prefix = self._engine.prefill(
        [prompt], key, [len(prompt)], cache_length, self._logits_length
      )
    elif self._prefix.tokens.shape[-1] < cache_length:
      self._prefix = self._engine.resize(self._prefix, cache_length)
    return self._prefix

  def widen(self, cache_length: int) -> None:
    """Grows the caches of waiting prompts to those of the batch."""
    if self.waiting:
      self.rows = self._engine.resize(self.rows, cache_length)


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
  longest, new = max(map(len, request.prompts)), request.max_new_tokens
  smallest = 0 if request.start is None else request.start.tokens.shape[-1]
  cache_lengths = [
    max(smallest, engine.cache_length(longest, count))
    for count in (min(new, _FIRST_NEW_TOKENS), new)
  ]
  batch = RowBatch(engine, request, num_rows, cache_lengths)
  queue = PromptQueue(engine, request, pending, num_rows)
  if max_blocks is None:
    max_blocks = POLL_INTERVAL_BLOCKS if request.find_end else 2**30
  while True:
    while batch.free and not queue.exhausted:
      with _timed(stats, 'prefill_s'):
        if not queue.waiting:
          queue.read(batch.cache_length)
        if queue.waiting:
          batch.fill(queue)
    num_active = len(batch.active)
    if not num_active:
      return
    with _timed(stats, 'decode_s'):
      size, active_threshold = len(batch.jobs), 0
      if not queue.exhausted:
        active_threshold = size - max(1, size // 16)
      elif num_active > size // 4:
        active_threshold = size // 4
      else:
        batch.narrow()
      batch.decode(active_threshold, max_blocks)
    # Not before the loop is dispatched: dispatching takes a while too.
    with _timed(stats, 'prefill_s'):
      jax.block_until_ready(queue.rows)
    with _timed(stats, 'decode_s'):
      answers = batch.poll(stats)
    for job, row in answers:
      yield job, row, batch.rows
    with _timed(stats, 'decode_s'):
      if batch.widen():
        queue.widen(batch.cache_length)


def _common_prefix_length(prompts: Sequence[Sequence[int] | np.ndarray]) -> int:
  """Counts the tokens that all prompts begin with and continue after."""
  longest = min(map(len, prompts)) - 1
  first = np.asarray(prompts[0][:longest])
  is_same = np.ones(longest, bool)
  for prompt in prompts:
    is_same &= np.asarray(prompt[:longest]) == first
  return longest if is_same.all() else int(is_same.argmin())


def _padded(values: Sequence, size: int, dtype: type = np.int32) -> np.ndarray:
  """Returns values followed by zeros."""
  array = np.zeros(size, dtype)
  array[: len(values)] = values
  return array
