"""The compilation cache: compiled programs are reused by later processes.

The cache is JAX's own, in the user's cache folder. A folder that JAX was
configured with, or JAX_ENABLE_COMPILATION_CACHE=false, takes precedence.
"""

import os
import pathlib
import sys

# Programs that compile faster than this, in seconds, are not stored.
_MIN_COMPILE_SECONDS = 0.5
_SECONDS_VARIABLE = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'


def cache_folder() -> pathlib.Path:
  """Returns the folder of the compilation cache."""
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(home) / 'cascades' / 'compiled'


def set_environment() -> None:
  """Configures the cache of this process and of its child processes."""
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(cache_folder()))
  os.environ.setdefault(_SECONDS_VARIABLE, str(_MIN_COMPILE_SECONDS))
  # JAX reads the variables as it is imported.
  if 'jax' in sys.modules:
    enable_cache()


def enable_cache() -> None:
  """Enables the cache in this process, unless JAX has a setting of its own."""
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  if not jax.config.jax_enable_compilation_cache:
    return
  if jax.config.jax_compilation_cache_dir is not None:
    return
  jax.config.update('jax_compilation_cache_dir', str(cache_folder()))
  seconds = float(os.environ.get(_SECONDS_VARIABLE, _MIN_COMPILE_SECONDS))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', seconds)
  # JAX reads the folder once, at its first compilation, which may have been
  # before this call.
  compilation_cache.reset_cache()
