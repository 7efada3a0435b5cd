"""What takes long to compile is kept for the next process.

By JAX's own cache, in the user's cache folder. Whoever has told JAX of another
folder, or to keep nothing (JAX_ENABLE_COMPILATION_CACHE=false), knows better.
"""

import os
import pathlib

# What compiles faster is not worth a file.
_LEAST = 0.5
_SECONDS = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'


def folder() -> pathlib.Path:
  """Where it is kept."""
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(home) / 'cascades' / 'compiled'


def announce() -> None:
  """As `keep`, before JAX is imported: to this process and those it starts."""
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(folder()))
  os.environ.setdefault(_SECONDS, str(_LEAST))


def keep() -> None:
  """Has this process load what is kept, and keep what it compiles."""
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  if not jax.config.jax_enable_compilation_cache:
    return
  if jax.config.jax_compilation_cache_dir is not None:
    return
  jax.config.update('jax_compilation_cache_dir', str(folder()))
  if _SECONDS not in os.environ:
    jax.config.update('jax_persistent_cache_min_compile_time_secs', _LEAST)
  # JAX asks once whether there is a folder: when it first compiles, which may
  # have been before.
  compilation_cache.reset_cache()
