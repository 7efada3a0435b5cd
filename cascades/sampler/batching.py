"""Shapes of batches, requests for them, and the engine that decodes rows.

Arrays come in few sizes, so that few programs are compiled. `Engine` holds the
values that every call of the compiled functions takes; `continuous_batching`
keeps its rows busy.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from cascades import decoding
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

  @property
  def utilization(self) -> float:
    """Share of decoded blocks of unfinished rows; nan before decoding."""
    return self.active_rows / self.rows if self.rows else float('nan')

  def add(self, stats: 'DecodeStats') -> None:
    """Adds the time and rows of another call."""
    for name in ('prefill_s', 'decode_s', 'active_rows', 'rows'):
      setattr(self, name, getattr(self, name) + getattr(stats, name))
    self.batch_size = stats.batch_size or self.batch_size


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

  def _with_sharding(self, rows: PyTree) -> PyTree:
    """Returns rows, or their inputs, split over the mesh; copies if needed."""
    return rows if self.mesh is None else sharding.shard_rows(rows, self.mesh)

  def prefill(
    self,
    prompts: Sequence[Sequence[int] | np.ndarray],
    keys: jax.Array,
    limits: Sequence[int] | np.ndarray,
    cache_length: int,
    logits_length: int = 0,
  ) -> decoding.Row:
    """Reads prompts of similar length; see `decoding.prefill`."""
    inputs = decoding.Prompts(
      *pad(prompts, cache_length), keys, np.asarray(limits, np.int32)
    )
    rows = decoding.prefill(
      self.params,
      # Split as well, or every device would read every prompt.
      self._with_sharding(inputs),
      models=self.step_config.models,
      cache_length=cache_length,
      logits_length=logits_length,
    )
    return self._with_sharding(rows)

  def extend(
    self,
    rows: decoding.Row,
    prompts: Sequence[Sequence[int] | np.ndarray],
    limits: Sequence[int] | np.ndarray,
    free_slots: int,
  ) -> decoding.Row:
    """Appends a further prompt to each row; see `decoding.extend`."""
    inputs = *pad(prompts, free_slots), np.asarray(limits, np.int32)
    rows = decoding.extend(
      self._with_sharding(rows),
      self.params,
      *self._with_sharding(inputs),
      models=self.step_config.models,
    )
    return self._with_sharding(rows)

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
      self._with_sharding(rows),
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
