"""Keeps a batch busy: the row of a finished answer takes the next prompt.

An answer does not depend on what is decoded beside it: its random numbers come
from its own key, and no row of a batch looks at another. So `run` may decode
in any order, and gives answers as they are done:

  fill     Prompts are read a group at a time, the longest first, and put into
           free rows, once for each of their leniences.
  decode   The compiled loop runs until enough rows are free to be filled.
  narrow   When nothing is left to fill them with, rows are dropped, if those
           that go on may do so for long enough to pay for a compilation.
  widen    Caches start at what short answers need, and double when a row asks
           for more.
  halve    Where the device's memory does not suffice, what is not done yet is
           decoded again in a batch of half the rows.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from cascades import (
  decoding,
  drafters,
  methods,
  sampling,
  sharding,
  verification,
)

# New tokens that a cache has room for at first; more come with a compilation.
_FIRST = 256
# Tokens that a row may still write for which narrower loops are compiled.
_TAIL = 256
# Blocks from one look at the rows to the next, where their texts may end them.
LOOK = 8

# Of a row without caches, as numpy arrays: the length that its text ends it at.
Ends = Callable[[decoding.SamplingState], int | None]


def bucket(n: int, least: int = 64) -> int:
  """The shape that n tokens are padded to: few shapes, little padding.

  64, 96, 128, 192, 256, 384, ...: every power of two and one between.
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
class Usage:
  """What decoding took.

  Attributes:
    prefill_s: Seconds of reading prompts, compilation included.
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
    self.prefill_s += other.prefill_s
    self.decode_s += other.decode_s
    self.live_rows += other.live_rows
    self.rows += other.rows
    self.batch_size = other.batch_size or self.batch_size


class Job(NamedTuple):
  """An answer to be decoded.

  Attributes:
    prompt: Index of its prompt.
    lenience: Index of its lenience.
  """

  prompt: int
  lenience: int


@dataclasses.dataclass(frozen=True)
class Engine:
  """Models and options that a batch is decoded with.

  Attributes:
    verifier: `models.LanguageModel` or alike.
    drafter: As for `decoding.prefill`.
    verifier_params: Of the verifier.
    drafter_params: Of the drafter.
    method: As for `decoding.decode`, and so the rest.
    gamma: Tokens drafted per block.
    scheme: How blocks are verified.
    how: From logits to probabilities.
    stop_tokens: Ids that end a row.
    mesh: Devices that the rows lie on; None for one. Parameters lie there
      already.
    drafts: How many are drafted per block.
    tree_size: As for `decoding.decode`.
  """

  verifier: Any
  drafter: drafters.Drafter
  verifier_params: PyTree
  drafter_params: PyTree
  method: methods.Method
  gamma: int
  scheme: verification.Scheme
  how: sampling.Processing
  stop_tokens: Int[Array, 'K']
  mesh: jax.sharding.Mesh | None = None
  drafts: int = 1
  tree_size: int | None = None

  def laid(self, rows: PyTree) -> PyTree:
    """Rows, or their inputs, where the mesh wants them; no copy if there."""
    return rows if self.mesh is None else sharding.shard_rows(rows, self.mesh)

  @property
  def _models(self):
    return dict(verifier=self.verifier, drafter=self.drafter)

  @property
  def _params(self):
    return self.verifier_params, self.drafter_params

  def prefill(
    self,
    prompts: Sequence[np.ndarray],
    keys: jax.Array,
    limits: Sequence[int],
    cache_length: int,
    logits_length: int = 0,
  ) -> decoding.SamplingState:
    """Reads prompts of about one length; see `decoding.prefill`."""
    inputs = *pad(prompts, cache_length), keys, np.asarray(limits, np.int32)
    rows = decoding.prefill(
      *self._params,
      # Split as well, or every device would read every prompt.
      *self.laid(inputs),
      cache_length=cache_length,
      logits_length=logits_length,
      **self._models,
    )
    return self.laid(rows)

  def extend(
    self,
    rows: decoding.SamplingState,
    prompt: np.ndarray,
    limit: int,
    cache_length: int,
  ) -> decoding.SamplingState:
    """One row goes on with another prompt; see `decoding.extend`."""
    padded, lengths = pad([prompt], cache_length - int(rows.length[0]))
    return decoding.extend(
      # A copy: whoever holds the row may go on from it once more.
      self.resize(rows, cache_length),
      *self._params,
      padded,
      lengths,
      np.asarray([limit], np.int32),
      **self._models,
    )

  def resize(
    self, rows: decoding.SamplingState, cache_length: int
  ) -> decoding.SamplingState:
    """A copy with more room; see `decoding.resize`."""
    return decoding.resize(
      rows, *self._params, cache_length=cache_length, **self._models
    )

  def decode(
    self,
    rows: decoding.SamplingState,
    live: int = 0,
    max_blocks: int = 2**30,
  ) -> tuple[decoding.SamplingState, Int[Array, '']]:
    """Decodes rows for a while; see `decoding.decode`."""
    return decoding.decode(
      # Of one layout, so that nothing is compiled for another.
      self.laid(rows),
      *self._params,
      self.how,
      self.stop_tokens,
      # Arrays, so that they are traced as such from the first call on.
      np.int32(live),
      np.int32(max_blocks),
      method=self.method,
      gamma=self.gamma,
      scheme=self.scheme,
      drafts=self.drafts,
      tree_size=self.tree_size,
      **self._models,
    )

  @property
  def slack(self) -> int:
    """Slots beyond a sequence that a block may write."""
    return decoding.slack(self.drafter, self.gamma, self.drafts)

  def room(self, length: int, new: int) -> int:
    """Cache slots for so many tokens and so many new ones."""
    return bucket(length + new + self.slack)

  def widened(self, room: int, longest: int, most: int) -> int:
    """The room that a batch goes on with.

    Args:
      room: What it has.
      longest: Tokens of its longest row.
      most: What is never too small.
    """
    fits = longest + self.slack <= room
    return room if fits else min(2 * room, most)


def pad(
  prompts: Sequence[np.ndarray], room: int
) -> tuple[np.ndarray, np.ndarray]:
  """Prompts, padded on the right to a bucket of at most `room`; lengths."""
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  padded = np.zeros((len(prompts), min(bucket(lengths.max()), room)), np.int32)
  for row, prompt in zip(padded, prompts, strict=True):
    row[: len(prompt)] = prompt
  return padded, lengths


def fetch(rows: decoding.SamplingState) -> decoding.SamplingState:
  """Everything small of some rows, as numpy arrays: no caches, no logits."""
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None, logits=None
  )
  return sharding.fetch(rows)


def _cut(
  small: decoding.SamplingState, slots: Sequence[int], ends: Ends
) -> decoding.SamplingState:
  """Rows that were fetched, ended where their texts end them."""
  length, done = small.length.copy(), small.done.copy()
  for slot in slots:
    end = ends(jax.tree.map(lambda x, i=slot: x[i], small))
    if end is not None:
      length[slot], done[slot] = end, True
  return small.replace(length=length, done=done)


def _finished(
  small: decoding.SamplingState, rows: decoding.SamplingState, slot: int
) -> decoding.SamplingState:
  """One row of those fetched, with its logits if there are any."""
  one = jax.tree.map(lambda x: x[slot], small)
  if rows.logits is None:
    return one
  new = int(one.length - one.prompt_length)
  return one.replace(logits=sharding.fetch(rows.logits[slot, :new]))


def run(
  engine: Engine,
  prompts: Sequence[np.ndarray],
  keys: jax.Array,
  leniences: Sequence[float],
  max_new_tokens: int,
  batch_size: int,
  usage: Usage,
  return_logits: bool = False,
  ends: Ends | None = None,
) -> Iterator[tuple[Job, decoding.SamplingState]]:
  """Decodes every prompt at every lenience.

  Args:
    engine: Models and options.
    prompts: Token ids.
    keys: One per prompt; all its leniences share it, so that they are paired.
    leniences: Of the engine's method.
    max_new_tokens: Most tokens of an answer.
    batch_size: Most rows at a time.
    usage: What this takes is added to it.
    return_logits: Whether rows hold the verifier's logits.
    ends: Where an answer ends, beside stop tokens and its limit.

  Yields:
    An answer's place and its final row, without caches; in no order.
  """
  asked = prompts, keys, np.asarray(leniences, np.float32), max_new_tokens
  todo = {Job(i, j) for i in range(len(prompts)) for j in range(len(leniences))}
  while todo:
    slots = width(len(todo), batch_size)
    try:
      for job, row in _run(
        engine, *asked, return_logits, ends, todo, slots, usage
      ):
        todo.remove(job)
        yield job, row
    except jax.errors.JaxRuntimeError as e:
      if 'RESOURCE_EXHAUSTED' not in str(e) or slots == 1:
        raise
      usage.batch_size = batch_size = slots // 2


def _run(
  engine,
  prompts,
  keys,
  leniences,
  max_new_tokens,
  logits,
  ends,
  todo,
  slots,
  usage,
):
  """As `run`, for some of its jobs, in a batch of so many rows at first."""
  lengths = np.array([len(prompt) for prompt in prompts])
  # The longest first, so that groups are of one length, and so that caches
  # need not grow for a prompt.
  order = np.argsort(-lengths, kind='stable')
  copies = len(leniences)
  left = {
    i: [job for j in range(copies) if (job := Job(i, j)) in todo]
    for i in order.tolist()
  }
  # Few at a time: prompts that were read wait in memory for free rows.
  group = min(len(prompts), max(1, slots // (2 * copies)))
  most = engine.room(int(lengths.max()), max_new_tokens)
  room = engine.room(int(lengths.max()), min(max_new_tokens, _FIRST))
  logits_length = max_new_tokens + engine.gamma + 1 if logits else 0

  held: list[Job | None] = [None] * slots
  groups = itertools.batched((i for i, jobs in left.items() if jobs), group)
  rows = ready = small = None
  waiting: list[Job] = []
  filled = False

  while True:
    start = time.perf_counter()
    free = [slot for slot, job in enumerate(held) if job is None]
    while free and not filled:
      if not waiting:
        chosen = next(groups, None)
        if chosen is None:
          filled = True
          break
        # The last group is filled up: a shape of its own costs more.
        full = np.array([*chosen, *[chosen[0]] * (group - len(chosen))])
        ready = engine.prefill(
          [prompts[i] for i in full],
          # Compiled, as `keys[full]` is not.
          decoding.take(keys, full),
          lengths[full] + max_new_tokens,
          room,
          logits_length,
        )
        jax.block_until_ready(ready)
        usage.prefill_s += time.perf_counter() - start
        start = time.perf_counter()
        read = {prompt: place for place, prompt in enumerate(chosen)}
        waiting = [job for i in chosen for job in left[i]]
        if rows is None:
          rows = decoding.take(ready, np.zeros(slots, np.int32))
          rows = rows.replace(done=jnp.ones_like(rows.done))
      now, waiting = waiting[: len(free)], waiting[len(free) :]
      taken, free = free[: len(now)], free[len(now) :]
      for slot, job in zip(taken, now, strict=True):
        held[slot] = job
      rows = decoding.place(
        rows,
        ready,
        _padded(taken, slots),
        _padded([read[job.prompt] for job in now], slots),
        _padded([leniences[job.lenience] for job in now], slots, np.float32),
        np.int32(len(now)),
      )
    going = [slot for slot, job in enumerate(held) if job is not None]
    if not going:
      return
    if not filled:
      live = slots - max(1, slots // 16)
    elif len(going) > slots // 4:
      live = slots // 4
    else:
      live, longest = 0, (small.limit - small.length)[going].max()
      if longest >= _TAIL:
        slots = width(len(going), slots)
        rows = decoding.take(rows, _padded(going, slots))
        rows = rows.replace(done=rows.done | (np.arange(slots) >= len(going)))
        held = [held[slot] for slot in going]
        held += [None] * (slots - len(held))
    rows, blocks = engine.decode(rows, live, LOOK if ends else 2**30)
    small = fetch(rows)
    worked, longest = small.blocks, int(small.length.max())
    if ends:
      small = _cut(small, going, ends)
      rows = rows.replace(done=rows.done | small.done)
    usage.rows += int(blocks) * slots
    usage.decode_s += time.perf_counter() - start
    for slot, job in enumerate(held):
      if job is not None and small.done[slot]:
        usage.live_rows += int(worked[slot])
        held[slot] = None
        yield job, _finished(small, rows, slot)
    start = time.perf_counter()
    wider = engine.widened(room, longest, most)
    if wider != room:
      room, rows = wider, engine.resize(rows, wider)
      if waiting:
        ready = engine.resize(ready, wider)
    usage.decode_s += time.perf_counter() - start


def turn(
  engine: Engine,
  row: decoding.SamplingState | None,
  prompt: np.ndarray,
  key: jax.Array,
  lenience: float,
  max_new_tokens: int,
  max_blocks: int | None,
  usage: Usage,
  return_logits: bool = False,
  ends: Ends | None = None,
) -> Iterator[tuple[decoding.SamplingState, decoding.SamplingState | None]]:
  """Decodes one answer, which may go on from an earlier one.

  Args:
    engine: Models and options.
    row: What came before, [1, ...], which stays as it is; None for nothing.
    prompt: Token ids.
    key: [1], of the answer.
    lenience: Of the engine's method.
    max_new_tokens: Most tokens of the answer.
    max_blocks: Blocks from one look at it to the next; None until its end.
    usage: What this takes is added to it.
    return_logits: Whether the row holds the verifier's logits.
    ends: Where the answer ends, beside stop tokens and its limit.

  Yields:
    The row so far, without caches, as numpy arrays; and the row itself, once
    it is finished, unless its text ended it.
  """
  clock = time.perf_counter()
  length = 0 if row is None else int(row.length[0])
  # Padding is read too.
  read = length + bucket(len(prompt))
  room = engine.room(read, min(max_new_tokens, _FIRST))
  if row is not None:
    room = max(room, row.tokens.shape[-1])
  most = max(room, engine.room(read, max_new_tokens))
  limit = length + len(prompt) + max_new_tokens
  if row is None:
    row = engine.prefill([prompt], key, [limit], room)
  else:
    row = engine.extend(row, prompt, limit, room)
  logits = None
  if return_logits:
    size = max_new_tokens + engine.gamma + 1
    logits = jnp.zeros((1, size, engine.verifier.vocab_size), jnp.float32)
  row = row.replace(
    # The loop takes the memory of all that it is given.
    key=jax.random.clone(key),
    lenience=np.array([lenience], np.float32),
    logits=logits,
  )
  jax.block_until_ready(row)
  usage.prefill_s += time.perf_counter() - clock
  blocks_at_a_time = max_blocks or (LOOK if ends else 2**30)
  while True:
    clock = time.perf_counter()
    row, blocks = engine.decode(row, max_blocks=blocks_at_a_time)
    small = fetch(row)
    longest = int(small.length[0])
    if ends:
      small = _cut(small, [0], ends)
    usage.rows += int(blocks)
    usage.live_rows += int(blocks)
    done = bool(small.done[0])
    usage.decode_s += time.perf_counter() - clock
    if done or max_blocks:
      # What is given out may be gone on from, so it has no logits.
      later = row.replace(logits=None) if row.done[0] else None
      yield _finished(small, row, 0), later
    if done:
      return
    wider = engine.widened(room, longest, most)
    if wider != room:
      room, row = wider, engine.resize(row, wider)


def _padded(values: Sequence, size: int, dtype=np.int32) -> np.ndarray:
  """Values, with zeros after them."""
  array = np.zeros(size, dtype)
  array[: len(values)] = values
  return array
