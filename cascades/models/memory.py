"""Free memory of the device, compared with the bytes of weights and rows."""

import contextlib
import math
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

_PROC = pathlib.Path('/proc')
_CGROUP = pathlib.Path('/sys/fs/cgroup')
# Slots of the row that has to fit beside the weights.
_SLOTS = 256


def available() -> int | None:
  """Returns the free bytes of the default device; None if unknown."""
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if {'bytes_limit', 'bytes_in_use'} <= stats.keys():
    return stats['bytes_limit'] - stats['bytes_in_use']
  if device.platform != 'cpu':
    return None
  free_kb = _field(_PROC / 'meminfo', 'MemAvailable:')
  return max(0, min(*_free_in_cgroups(), 1024 * free_kb)) if free_kb else None


def _field(file: pathlib.Path, name: str) -> int:
  """Returns the number after a name in a file, or 0."""
  words = file.read_text().split() if file.exists() else []
  return int(words[words.index(name) + 1]) if name in words else 0


def _free_in_cgroups() -> Iterator[int]:
  """Yields the free bytes of each limited control group of this process."""
  yield sys.maxsize
  file = _PROC / 'self/cgroup'
  text = file.read_text() if file.exists() else ''
  path = _CGROUP / text.partition('0::/')[2].partition('\n')[0]
  for folder in (path, *path.parents):
    # There is no such file, or the limit is `max`.
    with contextlib.suppress(OSError, ValueError):
      limit = int((folder / 'memory.max').read_text())
      used = int((folder / 'memory.current').read_text())
      # The system frees cached files if their memory is needed.
      yield limit - used + _field(folder / 'memory.stat', 'inactive_file')


def num_bytes(tree: PyTree) -> int:
  """Returns the bytes of arrays or of their shapes."""
  leaves = jax.tree.leaves(tree)
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def check_weights(
  name: Any, model: Any, tensors: Iterable[Any], options: Any
) -> None:
  """Refuses weights that do not fit with a row; `options` are LoadOptions."""
  weights = sum(
    math.prod(x.shape) * jnp.dtype(options.dtype or x.dtype).itemsize
    for x in tensors
  )
  shapes = model.param_shapes()
  row = num_bytes(jax.eval_shape(lambda x: model.init_cache(x, _SLOTS), shapes))
  devices = options.mesh.shape['model'] if options.mesh else 1
  fit_rows(1, weights // devices + row, f'{name} with one row')


def fit_rows(rows: int, row_bytes: int, content: str = 'one row') -> int:
  """Halves a number of rows until they fit, with half as many that wait."""
  free = available()
  if free is None:
    return rows
  if row_bytes > free:
    raise ValueError(
      f'memory: {content} needs {row_bytes / 1e9:.2f} GB where'
      f' {free / 1e9:.2f} GB are free; give a smaller model or shorter texts.'
    )
  # Other processes do not know that this one needs a smaller batch.
  is_alone = jax.process_count() == 1
  while is_alone and rows > 1 and (rows + rows // 2) * row_bytes > free:
    rows //= 2
  return rows
