"""Dtypes of parameters as they are read, and parameters on the device."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = 'bfloat16', 'float32'
# 'int8' rounds matrices of language models; see `contrib.cpu`.
DTYPES = *FLOATS, 'int8'


def float_dtype(dtype: Any) -> Any:
  """Returns the dtype of parameters that are not in eight bits."""
  return 'float32' if dtype == 'int8' else dtype


def choose_dtype(stored: Iterable[Any], declared: Any = None) -> str | None:
  """Returns the dtype of parameters for which no dtype was asked.

  It is the one that a config.json declares, else the stored one. float16 is
  read as float32, which holds each of its numbers in twice the memory, since
  activations of Gemma exceed 65,504; bfloat16 rounds to three bits fewer.
  """
  if declared in DTYPES:
    return declared
  dtypes = {jnp.dtype(dtype).name for dtype in stored}
  is_mixed = {'bfloat16', 'float32'} <= dtypes
  return 'float32' if is_mixed or 'float16' in dtypes else None


def check_dtypes(params: Any) -> None:
  """Refuses parameters in float16, which `load_model` converts to float32."""
  if any(x.dtype == jnp.float16 for x in jax.tree.leaves(params)):
    raise ValueError(
      "params: must not be float16, as Gemma's activations exceed its largest"
      ' number; cast them to float32 or bfloat16.'
    )


def device_put_params(params: Any, dtype: Any = None) -> Any:
  """Moves parameters to the device."""
  stored = (x.dtype for x in jax.tree.leaves(params))
  dtype = float_dtype(dtype) or choose_dtype(stored)

  def place(x):
    keeps_dtype = dtype is None or np.issubdtype(x.dtype, np.integer)
    return jnp.asarray(x, x.dtype if keeps_dtype else dtype)

  return jax.tree.map(place, params)
