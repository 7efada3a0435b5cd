"""Estimates the memory that a pair of models needs, and checks for it.

The estimate is arithmetic: nothing is allocated, so a pair that does not fit is
refused before it is loaded, with the changes that would make it fit.

Counted are both models' weights, the caches of a batch and of the prompts that
wait for its rows, and the logits of a block. Activations of a layer, the row of
a shared prefix, and the moment in which caches grow and exist twice are not
counted.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jaxtyping import PyTree

from cascades.models import sharding
from cascades.sampler import batching

_PROC = pathlib.Path('/proc')
_CGROUP = pathlib.Path('/sys/fs/cgroup')
# Rows of float32 over the vocabulary that are made of a row of logits: the
# probabilities of both models, what is drawn from, and its random numbers.
_ROWS_OF_FLOATS = 4
# More devices than this are not worth proposing.
_MOST_DEVICES = 64

# A model and its parameters, or their shapes; a `Checkpoint` will do, what
# `drafters.Spec.describe` returns.
Described = tuple[Any, PyTree] | tuple[Any, PyTree, Any]


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """Bytes that a device has to hold.

  Attributes:
    params: Both models' weights.
    caches: Both models' caches, of all rows.
    logits: The logits of a block of every row, and what is made of them.
    other: What else the rows hold for every token.
  """

  params: int
  caches: int
  logits: int
  other: int

  @property
  def total(self) -> int:
    """All of them."""
    return self.params + self.without_params

  @property
  def without_params(self) -> int:
    """What is not there yet where the weights are."""
    return self.caches + self.logits + self.other


def available(enough: float = math.inf) -> int | None:
  """Bytes of the default device that are still to be had; None if unknown.

  Args:
    enough: How many bytes will do. Where there are so many without what the
      system would give back if it had to, that is not counted: it takes a
      while.
  """
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if {'bytes_limit', 'bytes_in_use'} <= stats.keys():
    return stats['bytes_limit'] - stats['bytes_in_use']
  if device.platform != 'cpu':
    return None
  free = _field(_PROC / 'meminfo', 'MemAvailable:')
  left = list(_left_of_cgroups(enough))
  if free is not None:
    # It is given in kB.
    left.append(1024 * free)
  return max(0, min(left)) if left else None


def _field(file: pathlib.Path, name: str) -> int | None:
  """The number after a name, in a file of names and numbers."""
  try:
    lines = file.read_text().splitlines()
  except OSError:
    return None
  for line in lines:
    if line.split()[:1] == [name]:
      return int(line.split()[1])
  return None


def _left_of_cgroups(enough: float) -> Iterator[int]:
  """Bytes that each control group of this process has left, if limited.

  Args:
    enough: How many bytes will do; where a group has so many, what the system
      could take back from it is not counted.
  """
  try:
    lines = (_PROC / 'self/cgroup').read_text().splitlines()
  except OSError:
    return
  for line in lines:
    _, controllers, path = line.split(':', 2)
    # What was read of files counts as used, but is given back when needed.
    if not controllers:
      root = _CGROUP
      limit, used, cached = 'memory.max', 'memory.current', 'inactive_file'
    elif 'memory' in controllers.split(','):
      root = _CGROUP / 'memory'
      limit, used = 'memory.limit_in_bytes', 'memory.usage_in_bytes'
      cached = 'total_inactive_file'
    else:
      continue
    group = root / path.lstrip('/')
    for folder in (group, *group.parents):
      if not folder.is_relative_to(root):
        break
      try:
        left = int((folder / limit).read_text())
        left -= int((folder / used).read_text())
      # There is no such file, or the limit is `max`.
      except (OSError, ValueError):
        continue
      if left < enough:
        left += _field(folder / 'memory.stat', cached) or 0
      yield left


def _bytes(tree: PyTree, shardings: PyTree) -> int:
  """Bytes that one device has of a tree.

  Args:
    tree: Arrays, or their shapes.
    shardings: For each of them, how it is divided among devices.
  """
  sizes = jax.tree.map(
    lambda x, s: math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize,
    tree,
    shardings,
  )
  return sum(jax.tree.leaves(sizes))


def estimate(
  verifier: Described,
  drafter: Described | None,
  *,
  batch_size: int,
  cache_length: int,
  gamma: int,
  mesh: tuple[int, int] = (1, 1),
) -> MemoryEstimate:
  """What decoding needs at most.

  Args:
    verifier: The verifier's model, and its parameters or their shapes.
    drafter: The drafter's model, and its parameters or their shapes; None for
      decoding with the verifier alone.
    batch_size: Most rows decoded at a time.
    cache_length: Slots of a cache.
    gamma: Drafted tokens that the verifier reads per block; 0 for none.
    mesh: Number of devices along each axis of `sharding.make_mesh`, (data,
      model). What they cannot divide evenly each of them has whole.

  Returns:
    Bytes on each device.
  """
  mesh = AbstractMesh(mesh, ('data', 'model'))
  both = [verifier] if drafter is None else [verifier, drafter]
  params = sum(
    _bytes(weights, sharding.layout(model, weights, mesh))
    for model, weights, *_ in both
  )
  # Without drafts, the drafter has its weights and no part in the loop.
  both = both if gamma else both[:1]
  # Prompts that were read wait for rows, half as many at most.
  batches = batch_size, max(1, batch_size // 2)
  caches = logits = 0
  for model, weights, *_ in both:
    one = jax.eval_shape(
      functools.partial(model.init_cache, weights, cache_length)
    )
    for n in batches:
      rows = jax.tree.map(
        lambda x, n=n: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), one
      )
      caches += _bytes(rows, sharding.rows_layout(rows, mesh))
    # Logits are float32.
    logits += (gamma + 1) * model.vocab_size * 4
  logits += _ROWS_OF_FLOATS * 4 * verifier[0].vocab_size
  # A token's id, its source and its log-probability.
  tokens = (4 + 1 + 4) * cache_length
  return MemoryEstimate(
    params=params,
    caches=caches,
    logits=logits * batch_size,
    other=tokens * sum(batches),
  )


def check(
  verifier: Described,
  drafter: Described | None,
  *,
  batch_size: int,
  cache_length: int,
  gamma: int,
  allocated: bool,
  mesh: tuple[int, int] = (1, 1),
  limit: int | None = None,
) -> None:
  """Refuses what does not fit, and says what would.

  Args:
    verifier: As for `estimate`.
    drafter: As for `estimate`.
    batch_size: As for `estimate`.
    cache_length: Most tokens of a sequence, prompt and answer together; caches
      are padded to the next `batching.bucket`.
    gamma: As for `estimate`.
    allocated: Whether the weights are in memory already, and so not needed.
    mesh: As for `estimate`.
    limit: Bytes that a device still has; None for those of this one.

  Raises:
    ValueError: It does not fit; one sentence names the need, what there is,
      and every change that alone would do.
  """
  if limit is None:
    limit = available()
  if limit is None:
    return
  given = dict(
    batch_size=batch_size,
    cache_length=batching.bucket(cache_length),
    mesh=mesh,
  )

  def needed(both=(verifier, drafter), **changes):
    return estimate(*both, gamma=gamma, **given | changes)

  asked = needed()
  # Weights that are there already can also be changed for smaller ones.
  held = asked.params if allocated else 0
  if asked.total <= limit + held:
    return

  def fits(*args, **changes):
    return needed(*args, **changes).total <= limit + held

  advice = 'no other option alone would do, so give smaller models'
  if ways := list(_ways(fits, (verifier, drafter), **given)):
    advice = f'give {" or ".join(ways)}'
  raise ValueError(
    f'memory: batch_size {batch_size} with cache_length {cache_length} needs'
    f' {_shortage(asked, held, limit)}; {advice}.'
  )


def _ways(
  fits: Callable[..., bool],
  both: tuple[Described, Described | None],
  batch_size: int,
  cache_length: int,
  mesh: tuple[int, int],
) -> Iterator[str]:
  """Changes that alone would do, in words; of each kind the smallest change.

  Args:
    fits: `fits(both, **changes)` says whether it fits with other models, or
      with another batch_size, cache_length or mesh.
    both: Verifier and drafter, as `check` takes them.
    batch_size: Most rows decoded at a time, which are too many.
    cache_length: Slots of a cache, which are too many.
    mesh: Number of devices along each axis, (data, model), which are too few.
  """
  for rows in reversed(range((batch_size - 1).bit_length())):
    if fits(batch_size=2**rows):
      yield f'batch_size {2**rows}'
      break
  lengths, size = [], batching.bucket(1)
  while size < cache_length:
    lengths.append(size)
    size = batching.bucket(size + 1)
  for size in reversed(lengths):
    if fits(cache_length=size):
      yield f'cache_length {size}'
      break
  if fits(tuple(map(_halved, both))):
    yield 'models in bfloat16'
  data, model = mesh
  while data * (model := 1 << model.bit_length()) <= _MOST_DEVICES:
    if fits(mesh=(data, model)):
      yield f'mesh {data} x {model} of devices of this size'
      break


def _shortage(asked: MemoryEstimate, held: int, limit: int) -> str:
  """What is needed, of what, and what there is, in words.

  Args:
    asked: What a device has to hold.
    held: Bytes of it that are there already.
    limit: Bytes that the device still has.
  """
  parts = {
    'weights': asked.params - held,
    'caches': asked.caches + asked.other,
    'logits': asked.logits,
  }
  split = ', '.join(f'{k} {v / 1e9:.1f}' for k, v in parts.items() if v)
  # Rounded apart, so that what is short does not read as enough.
  total = math.ceil((asked.total - held) / 1e8) / 10
  there = math.floor(limit / 1e8) / 10
  return f'{total:.1f} GB ({split}) where {there:.1f} GB are free'


def _halved(described: Described | None) -> Described | None:
  """The same model, with bfloat16 in float32's place."""
  if described is None:
    return None
  model, params, *_ = described

  def shape(x):
    dtype = jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype)

  return model, jax.tree.map(shape, params)
