"""Float64 within a `with` statement, by the function that this JAX has."""

from typing import Any

import jax
from jax import experimental

# JAX 0.8 moved it.
_module: Any = jax if hasattr(jax, 'enable_x64') else experimental
enable_x64 = _module.enable_x64
