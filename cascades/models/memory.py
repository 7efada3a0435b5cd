"""Free memory of the device, compared with the bytes of weights and rows."""

import contextlib
import math
import pathlib

import jax
from jaxtyping import PyTree

_PROC = pathlib.Path('/proc')
_CGROUP = pathlib.Path('/sys/fs/cgroup')


def available() -> int | None:
  """Returns the free bytes of the default device; None if unknown."""
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if {'bytes_limit', 'bytes_in_use'} <= stats.keys():
    return stats['bytes_limit'] - stats['bytes_in_use']
  free_kb = _field(_PROC / 'meminfo', 'MemAvailable:')
  if device.platform != 'cpu' or not free_kb:
    return None
  free = [1024 * free_kb]
  # Control groups of this process, some of which limit it.
  with contextlib.suppress(FileNotFoundError):
    group = (_PROC / 'self/cgroup').read_text().partition('0::/')[2]
    path = _CGROUP / group.partition('\n')[0]
    for folder in (path, *path.parents):
      # There is no such file, or the limit is `max`.
      with contextlib.suppress(OSError, ValueError):
        limit = int((folder / 'memory.max').read_text())
        used = int((folder / 'memory.current').read_text())
        # The system frees cached files if their memory is needed.
        cached = _field(folder / 'memory.stat', 'inactive_file')
        free.append(limit - used + cached)
  return max(0, min(free))


def _field(file: pathlib.Path, name: str) -> int:
  """Returns the number after a name in a file, or 0."""
  words = file.read_text().split() if file.exists() else []
  return int(words[words.index(name) + 1]) if name in words else 0


def num_bytes(tree: PyTree) -> int:
  """Returns the bytes of arrays or of their shapes."""
  leaves = jax.tree.leaves(tree)
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


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
