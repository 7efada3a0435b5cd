"""Continuous batching: the row of a finished answer takes the next prompt.

An answer does not depend on the rows beside it: its random numbers come from
its own key, and no row of a batch reads another. So `run` may decode in any
order, and yields answers as they finish:

  fill     Prompts are read a group at a time, the longest first, and put into
           free rows, once for each of their leniences. A prefix that all
           prompts share, such as worked examples, is read once.
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
  MIN_PROMPT_LENGTH,
  POLL_INTERVAL_BLOCKS,
  BatchRequest,
  DecodeStats,
  Engine,
  FindEnd,
  Job,
  bucket,
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


def _row(fetched: decoding.Row, slot: int) -> decoding.Row:
  """Returns one of the fetched rows."""
  return jax.tree.map(lambda x: x[slot], fetched)


def _end_by_text(
  fetched: decoding.Row, slots: Sequence[int], find_end: FindEnd
) -> decoding.Row:
  """Returns fetched rows, finished where their text ends them."""
  length, done = fetched.length.copy(), fetched.done.copy()
  for slot in slots:
    end = find_end(_row(fetched, slot))
    if end is not None:
      length[slot], done[slot] = end, True
  return fetched.replace(length=length, done=done)


def _with_logits(
  fetched: decoding.Row, rows: decoding.Row, slot: int
) -> decoding.Row:
  """Returns a fetched row with its logits, if there are any."""
  row = _row(fetched, slot)
  if rows.logits is None:
    return row
  num_new = int(row.length - row.prompt_length)
  return row.replace(logits=sharding.fetch(rows.logits[slot, :num_new]))


class RowBatch:
  """Rows that are decoded together."""

  def __init__(
    self,
    engine: Engine,
    request: BatchRequest,
    num_rows: int,
    cache_lengths: tuple[int, int],
  ):
    """Makes an empty batch."""
    self._engine, self._request = engine, request
    self.cache_length, self._max_cache_length = cache_lengths
    # None before the first fill.
    self.rows: Any = None
    self.jobs: list[Job | None] = [None] * num_rows
    self.fetched: Any = None

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
    if self.rows is None:
      rows = decoding.gather_rows(
        queue.rows, np.zeros(len(self.jobs), np.int32)
      )
      # A NumPy array: a JAX call outside of compiled code takes longer.
      self.rows = rows.replace(done=np.ones(len(self.jobs), bool))
    slots = self.free
    jobs = queue.take(len(slots))
    for slot, job in zip(slots, jobs, strict=False):
      self.jobs[slot] = job
    size, leniences = len(self.jobs), self._request.leniences
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
    longest = (self.fetched.limit - self.fetched.length)[slots].max()
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

  def poll(self, stats: DecodeStats) -> None:
    """Waits for the loop and fetches the rows."""
    find_end = self._request.find_end
    self.fetched = fetch(self.rows)
    self._longest = int(self.fetched.length.max())
    stats.rows += int(self._blocks) * len(self.jobs)
    active = self.active
    if find_end:
      self.fetched = _end_by_text(self.fetched, list(active), find_end)
    for slot, job in active.items():
      row = _row(self.fetched, slot)
      # A text may have ended the answer before the fault.
      if row.fault.position < row.length:
        faults.check(row.fault, f'prompt {job.prompt}')

  def finish(self, stats: DecodeStats) -> list[tuple[Job, decoding.Row]]:
    """Returns the finished answers and frees their rows."""
    finished = []
    for slot, job in self.active.items():
      if self.fetched.done[slot]:
        stats.active_rows += int(self.fetched.blocks[slot])
        finished.append((job, _with_logits(self.fetched, self.rows, slot)))
        self.jobs[slot] = None
    if self._request.find_end:
      done = self.rows.done | self.fetched.done
      self.rows = self.rows.replace(done=done)
    return finished

  def widen(self) -> bool:
    """Doubles the caches if a row needs it; returns True if it did."""
    headroom = self._engine.step_config.cache_headroom
    if self._longest + headroom <= self.cache_length:
      return False
    longer = min(2 * self.cache_length, self._max_cache_length)
    if longer == self.cache_length:
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
    self._prefix_length = _common_prefix_length(request.prompts)
    if self._prefix_length < _MIN_SHARED_PREFIX or len(order) == 1:
      self._prefix_length = 0
    self._prefix: Any = None
    # None before the first group.
    self.rows: Any = None
    self.indices: dict[int, int] = {}
    self.waiting: list[Job] = []
    self.exhausted = False

  def read(self, cache_length: int) -> bool:
    """Reads the next group of prompts; returns False if there is none."""
    group = next(self._groups, None)
    if group is None:
      self.exhausted = True
      return False
    # The last group is filled up: another shape would be compiled.
    prompts = np.array([*group, *[group[0]] * (self._group - len(group))])
    limits = self._lengths[prompts] + self._request.max_new_tokens
    # Compiled, unlike `keys[prompts]`.
    keys = decoding.gather_rows(self._request.keys, prompts)
    rest = [self._request.prompts[i][self._prefix_length :] for i in prompts]
    if self._prefix_length:
      rows = decoding.gather_rows(
        self._prefix_row(cache_length), np.zeros_like(prompts)
      )
      self.rows = self._engine.extend(
        rows.replace(key=keys), rest, limits, cache_length - self._prefix_length
      )
    else:
      self.rows = self._prefill(rest, keys, limits, cache_length)
    self.indices = {prompt: index for index, prompt in enumerate(group)}
    self.waiting = [job for i in group for job in self._jobs[i]]
    return True

  def _prefill(self, prompts, keys, limits, cache_length: int) -> decoding.Row:
    logits_length = self._engine.logits_length(self._request)
    return self._engine.prefill(
      prompts, keys, limits, cache_length, logits_length=logits_length
    )

  def _prefix_row(self, cache_length: int) -> decoding.Row:
    """Returns one row that has read the shared prefix."""
    if self._prefix is None:
      prompt = self._request.prompts[0][: self._prefix_length]
      key = decoding.gather_rows(self._request.keys, np.zeros(1, int))
      self._prefix = self._prefill([prompt], key, [len(prompt)], cache_length)
    elif self._prefix.tokens.shape[-1] < cache_length:
      self._prefix = self._engine.resize(self._prefix, cache_length)
    return self._prefix

  def take(self, count: int) -> list[Job]:
    """Removes and returns at most `count` waiting jobs."""
    jobs, self.waiting = self.waiting[:count], self.waiting[count:]
    return jobs

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
  """Decodes every prompt at every lenience."""
  pending = {
    Job(i, j)
    for i in range(len(request.prompts))
    for j in range(len(request.leniences))
  }
  while pending:
    num_rows = width(len(pending), batch_size)
    try:
      for job, row in _run(engine, request, pending, num_rows, stats=stats):
        pending.remove(job)
        yield job, row
    except jax.errors.JaxRuntimeError as e:
      # Other processes do not know that this one needs a smaller batch.
      is_alone = jax.process_count() == 1
      if 'RESOURCE_EXHAUSTED' not in str(e) or num_rows == 1 or not is_alone:
        raise
      stats.batch_size = batch_size = num_rows // 2


def _run(
  engine: Engine,
  request: BatchRequest,
  pending: set[Job],
  num_rows: int,
  *,
  stats: DecodeStats,
) -> Iterator[tuple[Job, decoding.Row]]:
  """Decodes pending jobs in a batch of `num_rows` rows at first; see `run`."""
  longest = max(map(len, request.prompts))
  new = request.max_new_tokens
  cache_lengths = (
    engine.cache_length(longest, min(new, _FIRST_NEW_TOKENS)),
    engine.cache_length(longest, new),
  )
  batch = RowBatch(engine, request, num_rows, cache_lengths)
  queue = PromptQueue(engine, request, pending, num_rows)
  max_blocks = POLL_INTERVAL_BLOCKS if request.find_end else 2**30
  while True:
    while batch.free and not queue.exhausted:
      if not queue.waiting:
        with _timed(stats, 'prefill_s'):
          if not queue.read(batch.cache_length):
            break
      with _timed(stats, 'prefill_s'):
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
      batch.poll(stats)
      finished = batch.finish(stats)
    yield from finished
    with _timed(stats, 'decode_s'):
      if batch.widen():
        queue.widen(batch.cache_length)


def decode_single(
  engine: Engine,
  request: BatchRequest,
  row: decoding.Row | None,
  max_blocks: int | None,
  *,
  stats: DecodeStats,
) -> Iterator[tuple[decoding.Row, decoding.Row | None]]:
  """Decodes one answer, which may continue an earlier row."""
  batch = _start_single(engine, request, row, stats)
  poll_blocks = max_blocks or (
    POLL_INTERVAL_BLOCKS if request.find_end else 2**30
  )
  while True:
    with _timed(stats, 'decode_s'):
      batch.decode(0, poll_blocks)
      batch.poll(stats)
      # A returned row may be continued, and keeps no logits; a row that a stop
      # string may have cut cannot be continued.
      is_final = bool(batch.rows.done[0]) and not request.find_end
      final = batch.rows.replace(logits=None) if is_final else None
      so_far = _with_logits(batch.fetched, batch.rows, 0)
      done = bool(batch.finish(stats))
    if done or max_blocks:
      yield so_far, final
    if done:
      return
    with _timed(stats, 'decode_s'):
      batch.widen()


def _start_single(
  engine: Engine,
  request: BatchRequest,
  row: decoding.Row | None,
  stats: DecodeStats,
) -> RowBatch:
  """Makes a batch of one row that has read the prompt; see `decode_single`."""
  (prompt,), new = request.prompts, request.max_new_tokens
  length = 0 if row is None else int(row.length[0])
  read_length = length + bucket(len(prompt), MIN_PROMPT_LENGTH)  # With padding.
  first = engine.cache_length(read_length, min(new, _FIRST_NEW_TOKENS))
  if row is not None:
    first = max(first, row.tokens.shape[-1])
  longest = max(first, engine.cache_length(read_length, new))
  batch = RowBatch(engine, request, 1, (first, longest))
  with _timed(stats, 'prefill_s'):
    limit = length + len(prompt) + new
    if row is None:
      row = engine.prefill([prompt], request.keys, [limit], first)
    else:
      # A copy: the caller may continue the row again.
      row = engine.resize(row, first)
      row = engine.extend(row, [prompt], [limit], first - length)
    logits, size = None, engine.logits_length(request)
    if size:
      vocab_size = engine.step_config.models.verifier.vocab_size
      logits = jnp.zeros((1, size, vocab_size), jnp.float32)
    batch.rows = row.replace(
      # The loop donates its arguments.
      key=jax.random.clone(request.keys),
      lenience=np.asarray(request.leniences, np.float32),
      logits=logits,
    )
    jax.block_until_ready(batch.rows)
  batch.jobs = [Job(0, 0)]
  return batch


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
