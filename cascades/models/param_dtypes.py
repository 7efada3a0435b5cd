"""Dtypes of parameters as they are read, and parameters on the device."""

import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models.tensor_files import TensorHandle
from cascades.untrusted import display

FLOATS = 'bfloat16', 'float32'
# 'int8' rounds matrices of language models; see `int8_weights`.
DTYPES = *FLOATS, 'int8'


def float_dtype(dtype: Any) -> Any:
  """Returns the dtype of parameters that are not in eight bits.

  Args:
    dtype: A dtype, one of `DTYPES`, or None.
  """
  return 'float32' if dtype == 'int8' else dtype


def choose_dtype(
  stored: Iterable[Any], path: pathlib.Path | str | None = None
) -> str | None:
  """Returns the dtype of parameters for which no dtype was asked.

  Activations of Gemma exceed 65,504, the largest number of float16. float32
  holds every number of float16, so results equal those of the same weights in
  float32, in twice the memory. bfloat16 takes no more memory and rounds each
  number to three bits fewer.

  Args:
    stored: The dtypes of all parameters.
    path: The folder or file that a line on stderr names if parameters are
      stored in float16; None prints nothing.

  Returns:
    'float32' if any parameter is float16, or if some are bfloat16 and others
    float32, which the cache of a model cannot be; None if all keep their dtype.
  """
  dtypes = {jnp.dtype(dtype) for dtype in stored}
  if jnp.dtype('float16') not in dtypes:
    is_mixed = {jnp.dtype('bfloat16'), jnp.dtype('float32')} <= dtypes
    return 'float32' if is_mixed else None
  if path is not None:
    print(
      f'{display.printable(str(path))}: stored in float16, computed in float32,'
      ' which takes twice the memory; dtype bfloat16 takes no more.',
      file=sys.stderr,
    )
  return 'float32'


def check_dtypes(params: Any) -> None:
  """Refuses parameters in float16, which `load_model` converts to float32.

  Raises:
    ValueError: A parameter is float16.
  """
  if any(x.dtype == jnp.float16 for x in jax.tree.leaves(params)):
    raise ValueError(
      "params: must not be float16, as Gemma's activations exceed its largest"
      ' number; cast them to float32 or bfloat16.'
    )


def drafter_shapes(
  tensors: Mapping[str, TensorHandle],
  shapes: Mapping[str, tuple[int, ...]],
  dtype: str | None,
  ids: str,
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shapes and dtypes of a drafter's tensors without reading them.

  Args:
    tensors: Handles by name; empty if no file exists yet.
    shapes: Expected shapes by name, from config.json.
    dtype: The dtype asked for; 'int8' leaves them in float32. None for the
      result of `choose_dtype`, or bfloat16 if that is None, since such drafters
      are published in bfloat16.
    ids: The name of the tensor that holds ids.
  """
  stored = (tensors[name].dtype for name in shapes if name in tensors)
  dtype = float_dtype(dtype) or choose_dtype(stored) or 'bfloat16'
  return {
    name: jax.ShapeDtypeStruct(shape, 'int32' if name == ids else dtype)
    for name, shape in shapes.items()
  }


def device_put_params(
  params: Any, dtype: Any = None, path: pathlib.Path | str | None = None
) -> Any:
  """Moves parameters to the device.

  Args:
    params: A tree of NumPy arrays.
    dtype: Dtype of all but integers, where 'int8' means float32; None for the
      result of `choose_dtype`.
    path: As in `choose_dtype`.
  """
  dtype = float_dtype(dtype) or choose_dtype(
    (x.dtype for x in jax.tree.leaves(params)), path
  )

  def place(x):
    keeps_dtype = dtype is None or np.issubdtype(x.dtype, np.integer)
    return jnp.asarray(x, x.dtype if keeps_dtype else dtype)

  return jax.tree.map(place, params)
