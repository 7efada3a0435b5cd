"""Keeps a batch busy: the row of a finished answer takes the next prompt.

An answer does not depend on what is decoded beside it: its random numbers come
from its own key, and no row of a batch looks at another. So `run` may decode
in any order, and gives answers as they are done:

  fill     Prompts are read a group at a time, the longest first, and put into
           free rows, once for each of their leniences. What all of them begin
           with, such as worked examples, is read once.
  decode   The compiled loop runs until enough rows are free to be filled.
  narrow   When nothing is left to fill them with, rows are dropped, if those
           that go on may do so for long enough to pay for a compilation.
  widen    Caches start at what short answers need, and double when a row asks
           for more.
  halve    Where the device's memory does not suffice, what is not done yet is
           decoded again in a batch of half the rows.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from cascades import decoding
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import sharding

# New tokens that a cache has room for at first; more come with a compilation.
_FIRST = 256
# Tokens that a row may still write for which narrower loops are compiled.
_TAIL = 256
# Blocks from one look at the rows to the next, where their texts may end them.
POLL_INTERVAL_BLOCKS = 8
# What the shortest prompts are padded to, less than caches are: to read so many
# tokens takes as long as the blocks of a short answer.
_SHORTEST = 32
# Slots of the smallest cache: to attend to a few more that are empty is next to
# nothing, and to compile another loop takes longer than many short answers.
_SMALLEST = 256
# Tokens that all prompts must begin with to be read apart from the rest: two
# passes over fewer take longer than one over all.
_SHARED = 64
# Of a row without caches, as numpy arrays: the length that its text ends it at.
FindEnd = Callable[[decoding.Row], int | None]


def bucket(n: int, least: int = _SMALLEST) -> int:
  """The shape that n tokens are padded to: few shapes, little padding.

  256, 384, 512, 768, 1024, ...: every power of two and one between.
  """
  size = least
  while size < n:
    size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
  return size


def width(rows: int, batch_size: int) -> int:
  """The rows of a batch, as few of these as hold them all.

  1, 2, 4, 8, and from there on every power of two and one between: what a few
  devices can divide among them, and no more than a third of it for nothing.
  """
  return min(batch_size, bucket(rows, 1 << min(3, (rows - 1).bit_length())))


@dataclasses.dataclass
class DecodeStats:
  """What decoding took.

  Attributes:
    prefill_s: Seconds of reading prompts and of putting them into rows,
      compilation included.
    decode_s: Seconds of everything else.
    live_rows: Blocks of rows that were not finished.
    rows: Blocks of all rows, finished ones included.
    batch_size: Most rows at a time, once it had to be made smaller because the
      memory did not suffice; None if it did.
  """

  prefill_s: float = 0.0
  decode_s: float = 0.0
  live_rows: int = 0
  rows: int = 0
  batch_size: int | None = None

  @property
  def utilisation(self) -> float:
    """Live rows per row; nan before anything was decoded."""
    return self.live_rows / self.rows if self.rows else float('nan')

  def add(self, other: 'Usage') -> None:
    """Adds what another call took."""
    for name in ('prefill_s', 'decode_s', 'live_rows', 'rows'):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    self.batch_size = other.batch_size or self.batch_size


class Job(NamedTuple):
  """An answer to be decoded.

  Attributes:
    prompt: Index of its prompt.
    lenience: Index of its lenience.
  """

  prompt: int
  lenience: int


class BatchRequest(NamedTuple):
  """What is to be answered.

  Attributes:
    prompts: Token ids.
    keys: One per prompt; all its leniences share it, so that they are paired.
    leniences: How readily drafts are kept; every prompt is answered at each.
    max_new_tokens: Most tokens of an answer.
    return_logits: Whether rows hold the verifier's logits.
    ends: Where an answer ends, beside stop tokens and its limit.
  """

  prompts: Sequence[np.ndarray]
  keys: jax.Array
  leniences: Sequence[float]
  max_new_tokens: int
  return_logits: bool = False
  ends: FindEnd | None = None


@dataclasses.dataclass(frozen=True)
class Engine:
  """What a batch is decoded with.

  Attributes:
    step_config: Both models and what is compiled of their blocks.
    params: Both models' parameters.
    sampling: Temperature, truncation and forbidden tokens.
    stop_tokens: Ids that end a row.
    mesh: Devices that the rows lie on; None for one. Parameters lie there
      already.
    schedule: A `schedules.Schedule`; None where leniences stay.
  """

  step_config: decoding.StepConfig
  params: decoding.Params
  sampling: processing.SamplingParams
  stop_tokens: Int[Array | np.ndarray, 'K']
  mesh: jax.sharding.Mesh | None = None
  schedule: Any = None

  def laid(self, rows: PyTree) -> PyTree:
    """Rows, or their inputs, where the mesh wants them; no copy if there."""
    return rows if self.mesh is None else sharding.shard_rows(rows, self.mesh)

  def prefill(
    self,
    prompts: Sequence[np.ndarray],
    keys: jax.Array,
    limits: Sequence[int],
    cache_length: int,
    logits_length: int = 0,
  ) -> decoding.Row:
    """Reads prompts of about one length; see `decoding.prefill`."""
    inputs = *pad(prompts, cache_length), keys, np.asarray(limits, np.int32)
    rows = decoding.prefill(
      self.params,
      # Split as well, or every device would read every prompt.
      *self.laid(inputs),
      self.schedule,
      models=self.step_config.models,
      cache_length=cache_length,
      logits_length=logits_length,
    )
    return self.laid(rows)

  def extend(
    self,
    rows: decoding.Row,
    prompts: Sequence[np.ndarray],
    limits: Sequence[int],
    room: int,
  ) -> decoding.Row:
    """Rows go on with further prompts; see `decoding.extend`.

    Args:
      rows: Their memory is taken.
      prompts: One for each; padded, they have so many tokens as there is room.
      limits: Lengths at which they end.
      room: Slots of their caches that are free.
    """
    inputs = *pad(prompts, room), np.asarray(limits, np.int32)
    rows = decoding.extend(
      self.laid(rows),
      self.params,
      *self.laid(inputs),
      models=self.step_config.models,
    )
    return self.laid(rows)

  def resize(self, rows: decoding.Row, cache_length: int) -> decoding.Row:
    """A copy with more room; see `decoding.resize_caches`."""
    return decoding.resize_caches(
      rows,
      self.params,
      models=self.step_config.models,
      cache_length=cache_length,
    )

  def decode(
    self,
    rows: decoding.Row,
    live: int = 0,
    max_blocks: int = 2**30,
  ) -> tuple[decoding.Row, Int[Array, '']]:
    """Decodes rows for a while; see `decoding.decode`."""
    return decoding.decode(
      # Of one layout, so that nothing is compiled for another.
      self.laid(rows),
      self.params,
      self.sampling,
      self.stop_tokens,
      # Arrays, so that they are traced as such from the first call on.
      np.int32(live),
      np.int32(max_blocks),
      step_config=self.step_config,
    )

  def room(self, length: int, new: int) -> int:
    """Cache slots for so many tokens and so many new ones."""
    return bucket(length + new + self.step_config.cache_headroom)

  def logits_length(self, asked: BatchRequest) -> int:
    """Room for the logits of an answer; 0 if nobody asks for them."""
    return asked.return_logits * (
      asked.max_new_tokens + self.step_config.gamma + 1
    )


def pad(
  prompts: Sequence[Sequence[int] | np.ndarray],
  room: int,
  least: int = _SHORTEST,
) -> tuple[np.ndarray, np.ndarray]:
  """Prompts, padded on the right to a bucket of at most `room`; lengths."""
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  padded = np.zeros(
    (len(prompts), min(bucket(lengths.max(), least), room)), np.int32
  )
  for row, prompt in zip(padded, prompts, strict=True):
    row[: len(prompt)] = prompt
  return padded, lengths


def fetch(rows: decoding.Row) -> decoding.Row:
  """Everything small of some rows, as numpy arrays: no caches, no logits."""
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None, logits=None
  )
  return sharding.fetch(rows)


def _cut(
  small: decoding.Row, slots: Sequence[int], ends: FindEnd
) -> decoding.Row:
  """Rows that were fetched, ended where their texts end them."""
  length, done = small.length.copy(), small.done.copy()
  for slot in slots:
    end = ends(jax.tree.map(lambda x, i=slot: x[i], small))
    if end is not None:
      length[slot], done[slot] = end, True
  return small.replace(length=length, done=done)


def _finished(
  small: decoding.Row, rows: decoding.Row, slot: int
) -> decoding.Row:
  """One row of those fetched, with its logits if there are any."""
  one = jax.tree.map(lambda x: x[slot], small)
  if rows.logits is None:
    return one
  new = int(one.length - one.prompt_length)
  return one.replace(logits=sharding.fetch(rows.logits[slot, :new]))


class _Batch:
  """Rows that are decoded together.

  Attributes:
    rows: On the device; None before anything was put into them.
    held: Whose answer each row is; None for a row that is free.
    small: What was fetched of the rows when they were last looked at.
    room: Slots of their caches.
  """

  def __init__(
    self,
    engine: Engine,
    asked: BatchRequest,
    slots: int,
    sizes: tuple[int, int],
  ):
    """An empty batch of so many rows, with room for so much, and at most."""
    self._engine, self._asked = engine, asked
    self.room, self._most = sizes
    self.rows: decoding.Row | None = None
    self.held: list[Job | None] = [None] * slots
    self.small: decoding.Row | None = None

  @property
  def free(self) -> list[int]:
    """Rows that nothing is decoded in."""
    return [slot for slot, job in enumerate(self.held) if job is None]

  @property
  def going(self) -> list[int]:
    """Rows with an answer that is not finished."""
    return [slot for slot, job in enumerate(self.held) if job is not None]

  def fill(self, read: '_Prompts') -> None:
    """Puts what was read into rows that are free."""
    if self.rows is None:
      self.rows = decoding.gather_rows(
        read.rows, np.zeros(len(self.held), np.int32)
      )
      # Numpy's, for what JAX does outside of compiled code takes longer.
      self.rows = self.rows.replace(done=np.ones(len(self.held), bool))
    slots = self.free
    jobs = read.take(len(slots))
    for slot, job in zip(slots, jobs, strict=False):
      self.held[slot] = job
    size, leniences = len(self.held), self._asked.leniences
    self.rows = decoding.refill_rows(
      self.rows,
      read.rows,
      _padded(slots[: len(jobs)], size),
      _padded([read.places[job.prompt] for job in jobs], size),
      _padded([leniences[job.lenience] for job in jobs], size, np.float32),
      np.int32(len(jobs)),
    )

  def narrow(self) -> None:
    """Drops rows that are free, if the others may go on for long."""
    going = self.going
    longest = (self.small.limit - self.small.length)[going].max()
    if longest < _TAIL:
      return
    slots = width(len(going), len(self.held))
    rows = decoding.gather_rows(self.rows, _padded(going, slots))
    self.rows = rows.replace(done=rows.done | (np.arange(slots) >= len(going)))
    self.held = [self.held[slot] for slot in going]
    self.held += [None] * (slots - len(self.held))

  def decode(self, live: int, max_blocks: int) -> None:
    """Sends the loop off once, behind whatever is under way."""
    self.rows, self._blocks = self._engine.decode(self.rows, live, max_blocks)

  def look(self, usage: DecodeStats) -> None:
    """Waits for the loop, and looks at what came of it.

    Raises:
      FaultError: A distribution of a row is not finite.
    """
    ends = self._asked.ends
    self.small = fetch(self.rows)
    self._longest = int(self.small.length.max())
    usage.rows += int(self._blocks) * len(self.held)
    if ends:
      self.small = _cut(self.small, self.going, ends)
    for slot in self.going:
      row = jax.tree.map(lambda x, i=slot: x[i], self.small)
      # A text may have ended the answer before.
      if row.fault.position < row.length:
        faults.check(row.fault, f'prompt {self.held[slot].prompt}')

  def finish(self, usage: DecodeStats) -> list[tuple[Job, decoding.Row]]:
    """The answers that are finished; their rows are free from now on."""
    found = []
    for slot in self.going:
      if self.small.done[slot]:
        usage.live_rows += int(self.small.blocks[slot])
        found.append((self.held[slot], _finished(self.small, self.rows, slot)))
        self.held[slot] = None
    if self._asked.ends:
      done = self.rows.done | self.small.done
      self.rows = self.rows.replace(done=done)
    return found

  def widen(self) -> bool:
    """Makes room where a row asks for it; says whether one did."""
    if self._longest + self._engine.step_config.cache_headroom <= self.room:
      return False
    wider = min(2 * self.room, self._most)
    if wider == self.room:
      return False
    self.room, self.rows = wider, self._engine.resize(self.rows, wider)
    return True


class _Prompts:
  """Prompts, read a group at a time, that wait for free rows.

  Attributes:
    rows: The group that was read last.
    places: Which of its rows a prompt is.
    waiting: Jobs of that group that have no row yet.
    exhausted: Whether all groups were read.
  """

  def __init__(
    self, engine: Engine, asked: BatchRequest, todo: set[Job], slots: int
  ):
    self._engine, self._asked = engine, asked
    self._lengths = np.array([len(prompt) for prompt in asked.prompts])
    # The longest first, so that groups are of one length, and so that caches
    # need not grow for a prompt.
    order = np.argsort(-self._lengths, kind='stable').tolist()
    copies = len(asked.leniences)
    self._left = {
      i: [job for j in range(copies) if (job := Job(i, j)) in todo]
      for i in order
    }
    # Few at a time: prompts that were read wait in memory for free rows.
    self._group = min(len(order), max(1, slots // (2 * copies)))
    left = (i for i, jobs in self._left.items() if jobs)
    self._groups = itertools.batched(left, self._group)
    self._shared = _alike(asked.prompts)
    if self._shared < _SHARED or len(order) == 1:
      self._shared = 0
    self._first: decoding.Row | None = None
    self.rows: decoding.Row | None = None
    self.places: dict[int, int] = {}
    self.waiting: list[Job] = []
    self.exhausted = False

  def read(self, room: int) -> bool:
    """Reads the next group into caches of so much room, if there is one."""
    chosen = next(self._groups, None)
    if chosen is None:
      self.exhausted = True
      return False
    # The last group is filled up: a shape of its own costs more.
    full = np.array([*chosen, *[chosen[0]] * (self._group - len(chosen))])
    limits = self._lengths[full] + self._asked.max_new_tokens
    # Compiled, as `keys[full]` is not.
    keys = decoding.gather_rows(self._asked.keys, full)
    rest = [self._asked.prompts[i][self._shared :] for i in full]
    if self._shared:
      begun = decoding.gather_rows(self._begun(room), np.zeros_like(full))
      self.rows = self._engine.extend(
        begun.replace(key=keys), rest, limits, room - self._shared
      )
    else:
      self.rows = self._prefill(rest, keys, limits, room)
    self.places = {prompt: place for place, prompt in enumerate(chosen)}
    self.waiting = [job for i in chosen for job in self._left[i]]
    return True

  def _prefill(self, prompts, keys, limits, room: int) -> decoding.Row:
    logits = self._engine.logits_length(self._asked)
    return self._engine.prefill(prompts, keys, limits, room, logits)

  def _begun(self, room: int) -> decoding.Row:
    """One row that has read what all prompts begin with, with so much room."""
    if self._first is None:
      prompt = self._asked.prompts[0][: self._shared]
      key = decoding.gather_rows(self._asked.keys, np.zeros(1, int))
      self._first = self._prefill([prompt], key, [len(prompt)], room)
    elif self._first.tokens.shape[-1] < room:
      self._first = self._engine.resize(self._first, room)
    return self._first

  def take(self, count: int) -> list[Job]:
    """The next jobs, so many at the most."""
    now, self.waiting = self.waiting[:count], self.waiting[count:]
    return now

  def widen(self, room: int) -> None:
    """Keeps what waits level with the batch."""
    if self.waiting:
      self.rows = self._engine.resize(self.rows, room)


@contextlib.contextmanager
def _timed(usage: DecodeStats, field: str) -> Iterator[None]:
  """Adds the seconds of what is done within."""
  start = time.perf_counter()
  yield
  passed = time.perf_counter() - start
  setattr(usage, field, getattr(usage, field) + passed)


def run(
  engine: Engine, asked: BatchRequest, batch_size: int, usage: DecodeStats
) -> Iterator[tuple[Job, decoding.Row]]:
  """Decodes every prompt at every lenience.

  Args:
    engine: Models and options.
    asked: Prompts, leniences, and what is to come back.
    batch_size: Most rows at a time.
    usage: What this takes is added to it.

  Yields:
    An answer's place and its final row, without caches; in no order.
  """
  todo = {
    Job(i, j)
    for i in range(len(asked.prompts))
    for j in range(len(asked.leniences))
  }
  while todo:
    slots = width(len(todo), batch_size)
    try:
      for job, row in _run(engine, asked, todo, slots, usage):
        todo.remove(job)
        yield job, row
    except jax.errors.JaxRuntimeError as e:
      if 'RESOURCE_EXHAUSTED' not in str(e) or slots == 1:
        raise
      usage.batch_size = batch_size = slots // 2


def _run(
  engine: Engine,
  asked: BatchRequest,
  todo: set[Job],
  slots: int,
  usage: DecodeStats,
) -> Iterator[tuple[Job, decoding.Row]]:
  """As `run`, for some of its jobs, in a batch of so many rows at first."""
  longest = max(map(len, asked.prompts))
  news = min(asked.max_new_tokens, _FIRST), asked.max_new_tokens
  sizes = tuple(engine.room(longest, new) for new in news)
  batch = _Batch(engine, asked, slots, sizes)
  prompts = _Prompts(engine, asked, todo, slots)
  look = POLL_INTERVAL_BLOCKS if asked.ends else 2**30
  while True:
    while batch.free and not prompts.exhausted:
      if not prompts.waiting:
        with _timed(usage, 'prefill_s'):
          if not prompts.read(batch.room):
            break
      with _timed(usage, 'prefill_s'):
        batch.fill(prompts)
    going = len(batch.going)
    if not going:
      return
    with _timed(usage, 'decode_s'):
      rows, live = len(batch.held), 0
      if not prompts.exhausted:
        live = rows - max(1, rows // 16)
      elif going > rows // 4:
        live = rows // 4
      else:
        batch.narrow()
      batch.decode(live, look)
    # Not before the loop is on its way: to send it off takes a while too.
    with _timed(usage, 'prefill_s'):
      jax.block_until_ready(prompts.rows)
    with _timed(usage, 'decode_s'):
      batch.look(usage)
      found = batch.finish(usage)
    yield from found
    with _timed(usage, 'decode_s'):
      if batch.widen():
        prompts.widen(batch.room)


def turn(
  engine: Engine,
  asked: BatchRequest,
  row: decoding.Row | None,
  max_blocks: int | None,
  usage: DecodeStats,
) -> Iterator[tuple[decoding.Row, decoding.Row | None]]:
  """Decodes one answer, which may go on from an earlier one.

  Args:
    engine: Models and options.
    asked: A single prompt at a single lenience.
    row: What came before, [1, ...], which stays as it is; None for nothing.
    max_blocks: Blocks from one look at it to the next; None until its end.
    usage: What this takes is added to it.

  Yields:
    The row so far, without caches, as numpy arrays; and the row itself, once
    it is finished, unless texts may end it.
  """
  (prompt,), new = asked.prompts, asked.max_new_tokens
  length = 0 if row is None else int(row.length[0])
  # Padding is read too.
  read = length + bucket(len(prompt), _SHORTEST)
  room = engine.room(read, min(new, _FIRST))
  if row is not None:
    room = max(room, row.tokens.shape[-1])
  most = max(room, engine.room(read, new))
  batch = _Batch(engine, asked, 1, (room, most))
  with _timed(usage, 'prefill_s'):
    limit = length + len(prompt) + new
    if row is None:
      row = engine.prefill([prompt], asked.keys, [limit], room)
    else:
      # A copy: whoever holds the row may go on from it once more.
      row = engine.resize(row, room)
      row = engine.extend(row, [prompt], [limit], room - length)
    logits, size = None, engine.logits_length(asked)
    if size:
      vocab_size = engine.step_config.models.verifier.vocab_size
      logits = jnp.zeros((1, size, vocab_size), jnp.float32)
    batch.rows = row.replace(
      # The loop takes the memory of all that it is given.
      key=jax.random.clone(asked.keys),
      lenience=np.asarray(asked.leniences, np.float32),
      logits=logits,
    )
    jax.block_until_ready(batch.rows)
  batch.held = [Job(0, 0)]
  look = max_blocks or (POLL_INTERVAL_BLOCKS if asked.ends else 2**30)
  while True:
    with _timed(usage, 'decode_s'):
      batch.decode(0, look)
      batch.look(usage)
      # What is given out may be gone on from, so it has no logits; of what a
      # text may have cut nothing goes on.
      ended = bool(batch.rows.done[0]) and not asked.ends
      later = batch.rows.replace(logits=None) if ended else None
      so_far = _finished(batch.small, batch.rows, 0)
      done = bool(batch.finish(usage))
    if done or max_blocks:
      yield so_far, later
    if done:
      return
    with _timed(usage, 'decode_s'):
      batch.widen()


def _alike(prompts: Sequence[np.ndarray]) -> int:
  """How many tokens all prompts begin with, and each goes on after."""
  most = min(map(len, prompts)) - 1
  first = np.asarray(prompts[0][:most])
  same = np.ones(most, bool)
  for prompt in prompts:
    same &= np.asarray(prompt[:most]) == first
  return most if same.all() else int(same.argmin())


def _padded(values: Sequence, size: int, dtype=np.int32) -> np.ndarray:
  """Values, with zeros after them."""
  array = np.zeros(size, dtype)
  array[: len(values)] = values
  return array
