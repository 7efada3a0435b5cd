"""Estimates the memory that a pair of models needs, and checks for it.

The estimate is arithmetic: nothing is allocated, so a pair that does not fit is
refused before it is loaded, with the changes that would make it fit.

Counted are both models' weights, the caches of a batch and of the prompts that
wait for its rows, and the logits of a block and of answers that return them.
Activations of a layer, the row of a shared prefix, and the moment in which
caches grow and exist twice are not counted.
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
# Float32 arrays [V] that exist at a time for a sequence: q, p, the sampled
# distribution, and its random numbers.
_ROWS_OF_FLOATS = 4
# More devices than this are not worth proposing.
_MOST_DEVICES = 64

# A model, and its parameters or their shapes, as a `Checkpoint` has them or
# `drafters.Spec.describe` returns them.
Described = tuple[Any, PyTree] | tuple[Any, PyTree, Any]


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """Bytes of memory that a device has to hold.

  Attributes:
    params: Both models' weights.
    caches: Both models' caches, of all rows.
    logits: The logits of a block of every row, arrays computed from them, and
      logits that are returned.
    per_token: Token ids, sources and log-probabilities of all rows.
  """

  params: int
  caches: int
  logits: int
  per_token: int

  @property
  def total(self) -> int:
    """Sum of all parts."""
    return self.params + self.without_params

  @property
  def without_params(self) -> int:
    """Sum of all parts but the weights."""
    return self.caches + self.logits + self.per_token


def available(enough: float = math.inf) -> int | None:
  """Returns the free bytes of the default device; None if unknown."""
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if {'bytes_limit', 'bytes_in_use'} <= stats.keys():
    return stats['bytes_limit'] - stats['bytes_in_use']
  if device.platform != 'cpu':
    return None
  free = _field(_PROC / 'meminfo', 'MemAvailable:')
  free_bytes = list(_free_in_cgroups(enough))
  if free is not None:
    # It is given in kB.
    free_bytes.append(1024 * free)
  return max(0, min(free_bytes)) if free_bytes else None


def _field(file: pathlib.Path, name: str) -> int | None:
  """Returns the number after a name in a file of names and numbers."""
  try:
    text_lines = file.read_text().splitlines()
  except OSError:
    return None
  for line in text_lines:
    if line.split()[:1] == [name]:
      return int(line.split()[1])
  return None


def _free_in_cgroups(enough: float) -> Iterator[int]:
  """Yields the free bytes of each limited control group of this process."""
  try:
    text_lines = (_PROC / 'self/cgroup').read_text().splitlines()
  except OSError:
    return
  for line in text_lines:
    _, controllers, path = line.split(':', 2)
    # Cached files count as used memory, but the system frees them if needed.
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
  """Returns the bytes that one device holds of a tree."""
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
  logits_length: int = 0,
) -> MemoryEstimate:
  """Estimates the memory that decoding needs at most."""
  abstract_mesh = AbstractMesh(mesh, ('data', 'model'))
  both = [verifier] if drafter is None else [verifier, drafter]
  params = sum(
    _bytes(weights, sharding.layout(model, weights, abstract_mesh))
    for model, weights, *_ in both
  )
  # Without drafts, the drafter's weights are loaded, but it has no cache.
  both = both if gamma else both[:1]
  # Prompts that were read wait for rows, half as many at most.
  batches = batch_size, max(1, batch_size // 2)
  caches = logits = 0
  for model, weights, *_ in both:
    row_cache = jax.eval_shape(
      functools.partial(model.init_cache, weights, cache_length)
    )
    for n in batches:
      rows = jax.tree.map(
        lambda x, n=n: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), row_cache
      )
      caches += _bytes(rows, sharding.rows_layout(rows, abstract_mesh))
    # Logits are float32.
    logits += (gamma + 1) * model.vocab_size * 4
  logits += _ROWS_OF_FLOATS * 4 * verifier[0].vocab_size
  returned = logits_length * 4 * verifier[0].vocab_size
  # A token's id, its source and its log-probability.
  tokens = (4 + 1 + 4) * cache_length
  return MemoryEstimate(
    params=params,
    caches=caches,
    logits=logits * batch_size + returned * sum(batches),
    per_token=tokens * sum(batches),
  )


def check(
  verifier: Described,
  drafter: Described | None,
  *,
  batch_size: int,
  cache_length: int,
  allocated: bool,
  mesh: tuple[int, int] = (1, 1),
  limit: int | None = None,
  **lengths: int,
) -> None:
  """Refuses a pair that does not fit, and says which changes would."""
  if limit is None:
    limit = available()
  if limit is None:
    return
  pair, slots = (verifier, drafter), batching.bucket(cache_length)

  def required(
    both=pair, batch_size=batch_size, cache_length=slots, mesh=mesh
  ) -> MemoryEstimate:
    return estimate(
      *both,
      batch_size=batch_size,
      cache_length=cache_length,
      mesh=mesh,
      **lengths,
    )

  total = required()
  # Loaded weights can also be replaced by smaller ones.
  loaded = total.params if allocated else 0
  if total.total <= limit + loaded:
    return

  def fits(*args, **changes) -> bool:
    return required(*args, **changes).total <= limit + loaded

  advice = 'no other option alone would fit, so give smaller models'
  ways = list(
    _ways(fits, pair, batch_size=batch_size, cache_length=slots, mesh=mesh)
  )
  if ways:
    advice = f'give {" or ".join(ways)}'
  raise ValueError(
    f'memory: batch_size {batch_size} with cache_length {cache_length} needs'
    f' {_shortage(total, loaded, limit)}; {advice}.'
  )


class MemoryGuard:
  """Refuses batches of loaded models that the free memory does not hold.

  The arguments are those of `estimate`.
  """

  def __init__(
    self,
    verifier: Described,
    drafter: Described | None,
    gamma: int,
    mesh: tuple[int, int],
  ):
    self._models = verifier, drafter
    self._gamma, self._mesh = gamma, mesh
    # Counting takes longer than decoding a short answer.
    self._estimates: dict[tuple[int, int, int], MemoryEstimate] = {}

  def check(self, batch_size: int, tokens: int, logits_length: int = 0) -> None:
    """Refuses a batch that does not fit."""
    slots = batching.bucket(tokens)
    sizes: Any = dict(batch_size=batch_size, gamma=self._gamma, mesh=self._mesh)
    sizes |= dict(cache_length=slots, logits_length=logits_length)
    key = slots, batch_size, logits_length
    if key not in self._estimates:
      self._estimates[key] = estimate(*self._models, **sizes)
    required = self._estimates[key].without_params
    free = available(required)
    if free is not None and required > free:
      sizes |= dict(cache_length=tokens, allocated=True, limit=free)
      check(*self._models, **sizes)


def _ways(
  fits: Callable[..., bool],
  both: tuple[Described, Described | None],
  batch_size: int,
  cache_length: int,
  mesh: tuple[int, int],
) -> Iterator[str]:
  """Yields changes that alone would fit, the smallest of each kind."""
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


def _shortage(estimated: MemoryEstimate, loaded: int, limit: int) -> str:
  """Describes the required and the free memory in words."""
  parts = {
    'weights': estimated.params - loaded,
    'caches': estimated.caches + estimated.per_token,
    'logits': estimated.logits,
  }
  split = ', '.join(f'{k} {v / 1e9:.1f}' for k, v in parts.items() if v)
  # Rounded up and down, so that a shortage does not read as enough.
  total = math.ceil((estimated.total - loaded) / 1e8) / 10
  free = math.floor(limit / 1e8) / 10
  return f'{total:.1f} GB ({split}) where {free:.1f} GB are free'


def _halved(described: Described | None) -> Described | None:
  """Returns the model with bfloat16 in place of float32."""
  if described is None:
    return None
  model, params, *_ = described

  def shape(x):
    dtype = jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype)

  return model, jax.tree.map(shape, params)
