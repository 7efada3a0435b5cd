"""Files of tensors, and dtypes: safetensors, in a file or several, and JSON.

An index, `model.safetensors.index.json`, says which of several files holds a
tensor, and takes precedence if files hold more. Every format gives a
`TensorHandle` for each tensor, under its Hugging Face name, and tensors are
read one at a time: beside the parameters, memory holds the tensors of one leaf.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, files
from cascades.files import Schema

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
# Dtypes by their names in safetensors. JAX reads float64 as float32 too.
_DTYPES = {
  'BF16': jnp.bfloat16,
  'F16': jnp.float16,
  'F32': jnp.float32,
  'F64': jnp.float32,
}
FLOATS = 'bfloat16', 'float32'
# 'int8' rounds matrices of language models; see `contrib.cpu`.
DTYPES = *FLOATS, 'int8'


class _Index(Schema):
  weight_map: dict[str, Any]


@dataclasses.dataclass(eq=False)
class TensorHandle:
  """A tensor that is read some rows at a time, and never held whole."""

  shape: tuple[int, ...]
  stored_type: str
  read: Callable[[int, int], np.ndarray]

  @property
  def dtype(self) -> Any:
    """Dtype of a parameter that is read from the tensor; None if none can."""
    return _DTYPES.get(self.stored_type)

  @property
  def is_ids(self) -> bool:
    """True if the tensor holds integers of 32 or 64 bits."""
    return self.stored_type in ('I32', 'I64')

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Reads a contiguous slice of rows."""
    first, last, _ = rows.indices(self.shape[0])
    return self.read(first, last)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    del copy
    array = self[:]
    return array if dtype is None else array.astype(dtype, copy=False)


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of a JSON file; {} if it does not exist."""
  try:
    return files.read_fields(file, 'model')
  except (FileNotFoundError, NotADirectoryError):
    return {}


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
  """Returns the fields of a folder's config.json; {} if it does not exist."""
  file = pathlib.Path(folder) / 'config.json'
  return read_json(file) if file.is_file() else {}


def write_json(file: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Writes fields as JSON, sorted by name."""
  text = json.dumps(dict(fields), indent=2, sort_keys=True)
  files.write_text(file, text + '\n')


def save_tensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a file of tensors, whole or not at all."""
  from safetensors.numpy import save_file

  with files.replace_file(file) as part:
    save_file(dict(tensors), part, metadata={'format': 'pt'})


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


_ADVICE = (
  'fetch both from one place, before quantisation or as a GGUF file, with'
  ' adapters merged and without a wrapper of the model (PEFT, torch.compile)'
)


def find(
  path: pathlib.Path,
  tensors: Mapping[str, TensorHandle],
  name: str,
  shape: tuple[int, ...],
  *,
  field: str = 'model',
  is_ids: bool = False,
) -> TensorHandle:
  """Returns a tensor by name, after checks of its shape and type."""
  subject, tensor = f'in {path} the tensor {name}', tensors.get(name)
  if tensor is None:
    subject, problem = path, f'lacks the tensor {name}'
  elif is_ids and not tensor.is_ids:
    problem = f'has the type {tensor.stored_type}, and ids must be integers'
  elif not is_ids and tensor.dtype is None:
    problem = f'is quantised ({tensor.stored_type})'
  elif tensor.shape != shape:
    problem = f'has the shape {tensor.shape} where config.json implies {shape}'
  else:
    return tensor
  raise ValueError(f'{field}: {subject} {problem}; {_ADVICE}.')


def check_layers(
  path: pathlib.Path, names: Iterable[str], layers: int, prefix: str
) -> None:
  """Refuses tensors of a model of more or fewer layers."""
  last, further = (f'{prefix}{i}.' for i in (layers - 1, layers))
  names = [x for x in names if x.startswith((last, further))]
  if not names or any(x.startswith(further) for x in names):
    raise ValueError(
      f'model: {path} does not have the {layers} layers of its configuration;'
      f' {_ADVICE}.'
    )


def open_folder(folder: pathlib.Path) -> dict[str, TensorHandle]:
  """Opens the tensors of a folder.

  Each tensor is read from the file that the index names for it; other tensors
  of the files are ignored. Without an index, the file is `model.safetensors`.
  """
  location, names = f'model: {folder / INDEX}', dict[str, str]()
  if fields := read_json(folder / INDEX):
    names = _Index.check(fields, location).weight_map
  for name, file in names.items():
    files.sibling(folder, file, f'{location}: {arguments.quote(name)}')
  stored = sorted({*names.values()}) or [SINGLE]
  opened = {file: open_file(folder / file) for file in stored}
  tensors = {}
  for name, file in (names or dict.fromkeys(opened[SINGLE], SINGLE)).items():
    # Multimodal checkpoints have the text model under another root.
    short = name.removeprefix('language_model.')
    short = short.replace('model.language_model.', 'model.')
    problem = f'{folder / file} lacks the tensor {name}, though {INDEX} has it'
    if is_twice := short in tensors:
      problem = f'{folder} has the tensor {short} twice, also as {name}'
    if is_twice or name not in opened[file]:
      raise ValueError(f'model: {problem}; fetch the model again.')
    tensors[short] = opened[file][name]
  return tensors


def open_file(file: pathlib.Path) -> dict[str, TensorHandle]:
  """Opens the tensors of one file."""
  from safetensors import SafetensorError, safe_open

  try:
    files.check_regular(file, 'model', 'fetch it again')
    # A memory map would count as memory as long as the model is loaded.
    opened: Any = safe_open(file, framework='numpy', backend='pread')
  except (FileNotFoundError, SafetensorError):
    problem = 'damaged' if file.exists() else 'missing'
    raise ValueError(f'model: {file} is {problem}; fetch it again.') from None

  def make_handle(name: str) -> TensorHandle:
    stored = opened.get_slice(name)
    shape = tuple(stored.get_shape())

    def read(first: int, last: int) -> np.ndarray:
      # An empty tensor cannot be sliced.
      if not all(shape) or (first, last) == (0, shape[0]):
        return opened.get_tensor(name)
      # The open file would read all rows for some; a memory map reads these,
      # and counts as memory while it is open.
      with safe_open(file, framework='numpy') as mapped:
        return mapped.get_slice(name)[first:last]

    return TensorHandle(shape, stored.get_dtype(), read)

  return {name: make_handle(name) for name in sorted(opened.keys())}
