"""The compilation cache: compiled programs are reused by later processes.

The cache is JAX's own, in the user's cache folder. A folder that JAX was
configured with, or JAX_ENABLE_COMPILATION_CACHE=false, takes precedence.
"""

import os
import pathlib
import sys


def cache_folder() -> pathlib.Path:
  """Returns the folder of the compilation cache."""
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(home) / 'cascades' / 'compiled'


def enable_cache() -> None:
  """Enables the cache of this process and of its child processes."""
  variable = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'
  # Programs that compile faster, in seconds, are not stored.
  seconds = float(os.environ.setdefault(variable, '0.5'))
  folder = str(cache_folder())
  folder = os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', folder)
  # JAX reads the variables as it is imported.
  if 'jax' not in sys.modules:
    return
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  is_enabled = jax.config.jax_enable_compilation_cache
  if is_enabled and jax.config.jax_compilation_cache_dir is None:
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', seconds)
    # JAX reads the folder once, at its first compilation, which may have been
    # before this call.
    compilation_cache.reset_cache()
