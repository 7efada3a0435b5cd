"""Tensors on disk: safetensors, in one file or in several.

An index, `model.safetensors.index.json`, says which of several files has a
tensor, and decides where files hold more. Every format gives a `TensorHandle`
for each tensor, under its Hugging Face name, and tensors are read one at a
time: beside the parameters, memory holds the tensors of one leaf.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, atomic
from cascades.untrusted import bounded, display, paths
from cascades.untrusted.schema import Schema, Texts

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
DTYPES = 'bfloat16', 'float32'
# As safetensors names them. JAX reads float64 as float32 too.
_DTYPES = {
  'BF16': jnp.bfloat16,
  'F16': jnp.float16,
  'F32': jnp.float32,
  'F64': jnp.float32,
}
# Of ids.
_WHOLE = 'I32', 'I64'


class _Index(Schema):
  """What an index says."""

  weight_map: Texts


class TensorHandle:
  """A tensor that is read some rows at a time, so that it is never held whole.

  Attributes:
    shape: Of the tensor.
    kind: Its type, as safetensors names it.
  """

  def __init__(
    self,
    shape: tuple[int, ...],
    kind: str,
    read: Callable[[int, int], np.ndarray],
  ):
    """Nothing is read yet.

    Args:
      shape: Of the tensor.
      kind: Its type, as safetensors names it.
      read: Gives rows, from the first of these numbers to before the second.
    """
    self.shape, self.kind, self._read = shape, kind, read

  @property
  def dtype(self) -> Any:
    """What the parameter is that it is read for."""
    return _DTYPES.get(self.kind, jnp.float32)

  @property
  def is_weights(self) -> bool:
    """Whether it has numbers that a parameter can be."""
    return self.kind in _DTYPES

  @property
  def is_ids(self) -> bool:
    """Whether it has whole numbers, of 32 or 64 bits."""
    return self.kind in _WHOLE

  def first(self, count: int) -> 'TensorHandle':
    """So many of them."""
    return TensorHandle((count, *self.shape[1:]), self.kind, self._read)

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Some rows that stand together."""
    first, last, _ = rows.indices(self.shape[0])
    return self._read(first, last)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    del copy
    found = self[:]
    return found if dtype is None else found.astype(dtype, copy=False)


def read_json(file: pathlib.Path) -> dict[str, Any] | None:
  """A file's fields; None if there is no such file.

  Raises:
    ValueError: It is damaged, or beyond the bounds of such files.
  """
  try:
    return bounded.read_fields(file, 'model')
  except (FileNotFoundError, NotADirectoryError):
    return None


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
  """The fields of a folder's config.json; none if there is no such file.

  Raises:
    ValueError: It is damaged.
  """
  file = pathlib.Path(folder) / 'config.json'
  return (file.is_file() and read_json(file)) or {}


def write_json(file: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Writes fields as JSON, sorted by name."""
  text = json.dumps(dict(fields), indent=2, sort_keys=True)
  atomic.write_text(file, text + '\n')


def find(
  what: pathlib.Path,
  where: Mapping[str, TensorHandle],
  name: str,
  wanted: tuple[int, ...],
  field: str = 'model',
  ids: bool = False,
) -> TensorHandle:
  """A tensor by its name.

  Args:
    what: The folder or file, for errors.
    where: As `open_folder` gives it.
    name: Of the tensor.
    wanted: Its shape by config.json.
    field: What the user gave the folder for.
    ids: Whether it has ids, and no weights.

  Raises:
    ValueError: It is missing or of another shape; or weights are whole numbers,
      or others of 8 bits and less, which would be read as if they were weights;
      or ids are no whole numbers.
  """
  check_present(what, where, [name], field)
  found = where[name]
  if found.shape != wanted:
    raise ValueError(
      f'{field}: in {what} the tensor {name} has the shape {found.shape}'
      f' where config.json asks for {wanted}; fetch both from one place.'
    )
  if ids and not found.is_ids:
    raise ValueError(
      f'{field}: in {what} the tensor {name} has the type {found.kind}, and ids'
      f' are whole numbers ({", ".join(_WHOLE)}); fetch it again.'
    )
  if not ids and not found.is_weights:
    raise ValueError(
      f'{field}: in {what} the tensor {name} is quantised ({found.kind}), which'
      ' is not read; fetch the model as it was before, or as a GGUF file.'
    )
  return found


def check_present(
  what: pathlib.Path,
  where: Mapping[str, TensorHandle],
  names: Iterable[str],
  field: str = 'model',
) -> None:
  """Refuses what lacks a tensor; arguments as for `find`.

  Raises:
    ValueError: One is missing.
  """
  for name in names:
    if name not in where:
      raise ValueError(
        f'{field}: {what} lacks the tensor {name}; the download may be'
        ' incomplete, fetch it again.'
      )


def check_layers(
  what: str | pathlib.Path, names: Iterable[str], layers: int, prefix: str
) -> None:
  """Refuses tensors of layers that a model does not have.

  It is another model then, or what says its layers is of another.

  Args:
    what: The folder or file, for errors.
    names: Of all tensors.
    layers: How many the model has.
    prefix: What the number of a layer stands behind.

  Raises:
    ValueError: There is such a tensor.
  """
  for name in names:
    number = name.removeprefix(prefix).partition('.')[0]
    if not name.startswith(prefix) or not number.isdecimal():
      continue
    # A number of thousands of digits is none that a model has.
    i = arguments.parse_count(number)
    if i is None or i >= layers:
      raise ValueError(
        f'model: {what} has the tensor {arguments.quote(name)}, of a layer'
        f' beyond its {layers}; fetch it again.'
      )


def read_all(
  what: pathlib.Path,
  where: Mapping[str, TensorHandle],
  shapes: Mapping[str, tuple[int, ...]],
  field: str,
  ids: str,
) -> dict[str, np.ndarray]:
  """All of some tensors, by name, as they are stored.

  Args:
    what: The folder or file, for errors.
    where: As `open_folder` gives it.
    shapes: By name, what config.json asks for.
    field: What the user gave the folder for.
    ids: The name of the one that has ids, where there is one.

  Raises:
    ValueError: One is missing, of another shape or of another type.
  """
  return {
    name: np.asarray(find(what, where, name, shape, field, name == ids))
    for name, shape in shapes.items()
  }


def choose_dtype(stored: Iterable[Any], what: Any = None) -> str | None:
  """Chooses what parameters become for which nobody names a type.

  float16 ends at 65,504, which the activations of Gemma pass. float32 has every
  number of float16, so that answers are those of the same weights in float32;
  it takes twice the memory. bfloat16 takes no more, and rounds each number to
  three bits less; who prefers that asks for it.

  Args:
    stored: The types of all parameters.
    what: The folder or file, which a line on stderr names if what is stored is
      not what is computed in; None says nothing.

  Returns:
    'float32' if any is float16, else None: they stay as they are stored.
  """
  if not any(dtype == jnp.float16 for dtype in stored):
    return None
  if what is not None:
    print(
      f'{display.printable(str(what))}: stored in float16, computed in'
      ' float32, which takes twice the memory; with dtype bfloat16 it takes no'
      ' more.',
      file=sys.stderr,
    )
  return 'float32'


def drafter_shapes(
  where: Mapping[str, TensorHandle],
  shapes: Mapping[str, tuple[int, ...]],
  dtype: str | None,
  ids: str,
) -> dict[str, jax.ShapeDtypeStruct]:
  """Tensors of a drafter as they are to be, as far as is known without reading.

  Args:
    where: As `open_folder` gives it; nothing if they are not there yet.
    shapes: By name, what config.json asks for.
    dtype: What is asked for; None for bfloat16, in which such drafters are
      published, or what `choose_dtype` says.
    ids: The name of one of whole numbers.
  """
  stored = (where[name].dtype for name in shapes if name in where)
  dtype = dtype or choose_dtype(stored) or 'bfloat16'
  return {
    name: jax.ShapeDtypeStruct(shape, 'int32' if name == ids else dtype)
    for name, shape in shapes.items()
  }


def device_put_params(params: Any, dtype: Any = None, what: Any = None) -> Any:
  """Puts parameters on the device.

  Args:
    params: Arrays of NumPy's; whole numbers stay what they are.
    dtype: What all others become; None for what `choose_dtype` says.
    what: As there.
  """
  dtype = dtype or choose_dtype(
    (x.dtype for x in jax.tree.leaves(params)), what
  )

  def one(x):
    number = np.issubdtype(x.dtype, np.integer)
    return jnp.asarray(x, x.dtype if number or dtype is None else dtype)

  return jax.tree.map(one, params)


def open_folder(folder: pathlib.Path) -> dict[str, TensorHandle]:
  """Finds the tensors of a folder.

  The index decides: each tensor is read from the file that `weight_map` names
  for it, and what else the files hold is ignored. Without an index the tensors
  are those of `model.safetensors`, or of the only file there is.

  Returns:
    A handle for each tensor, by its name in `param_mapping.param_mappings`.

  Raises:
    ValueError: A file or a tensor is missing, damaged, or there twice.
  """
  if not any(folder.glob('*.safetensors')):
    raise ValueError(
      f'model: {folder} has no *.safetensors file; fetch the weights in that'
      ' format, as others cannot be read.'
    )
  files = _weight_map(folder)
  if files is None:
    file = _only_file(folder)
    handles = {file.name: _opened(file)}
    files = dict.fromkeys(handles[file.name].keys(), file.name)
  else:
    handles = {
      file: _opened(folder / file) for file in sorted(set(files.values()))
    }
    held = {file: {*handle.keys()} for file, handle in handles.items()}
    for name, file in files.items():
      if name not in held[file]:
        raise ValueError(
          f'model: {folder / file} lacks the tensor {name}, though {INDEX} says'
          ' that it is there; fetch both from one place.'
        )
  names: dict[str, str] = {}
  for name in files:
    # Multimodal checkpoints put the text model under another root.
    short = name.removeprefix('language_model.')
    short = short.replace('model.language_model.', 'model.')
    if short in names:
      raise ValueError(
        f'model: {folder} has the tensor {short} twice, as {names[short]}'
        f' and as {name}; fetch the model again.'
      )
    names[short] = name
  return {
    short: _rows(handles[files[name]], name) for short, name in names.items()
  }


def open_file(file: pathlib.Path) -> dict[str, TensorHandle]:
  """The tensors of one file, by name.

  Raises:
    ValueError: It is missing or damaged.
  """
  handle = _opened(file)
  return {name: _rows(handle, name) for name in sorted(handle.keys())}


def _rows(handle: Any, name: str) -> TensorHandle:
  """What reads a tensor of a file of safetensors."""
  found = handle.get_slice(name)
  shape = tuple(found.get_shape())

  def read(first: int, last: int) -> np.ndarray:
    # Of nothing, no slice can be taken.
    return found[first:last] if all(shape) else handle.get_tensor(name)

  return TensorHandle(shape, found.get_dtype(), read)


def _opened(file: pathlib.Path) -> Any:
  """A handle of a file of tensors.

  Raises:
    ValueError: It is missing or damaged.
  """
  from safetensors import SafetensorError, safe_open

  try:
    bounded.check_regular(file, 'model', 'fetch it again')
    # What is mapped would count as memory until the handle is closed.
    return safe_open(file, framework='numpy', backend='pread')
  except FileNotFoundError:
    raise ValueError(
      f'model: {file} is missing, though {INDEX} lists it; fetch it again.'
    ) from None
  except SafetensorError:
    raise ValueError(f'model: {file} is damaged; fetch it again.') from None


def _weight_map(folder: pathlib.Path) -> dict[str, str] | None:
  """The file of each tensor, as the index says it; None without an index.

  Raises:
    ValueError: The index is damaged, or names a file outside of the folder.
  """
  fields = read_json(folder / INDEX)
  if fields is None:
    return None
  where = f'model: {folder / INDEX}'
  files = _Index.check(fields, where).weight_map
  for name, file in files.items():
    paths.sibling(folder, file, f'{where}: {arguments.quote(name)}')
  return files


def _only_file(folder: pathlib.Path) -> pathlib.Path:
  """The file of tensors of a folder that has no index.

  Raises:
    ValueError: There are several, and none is called `model.safetensors`.
  """
  files = sorted(folder.glob('*.safetensors'))
  usual = folder / SINGLE
  if usual in files:
    return usual
  if len(files) > 1:
    names = ', '.join(file.name for file in files)
    raise ValueError(
      f'model: {folder} has several files of tensors ({names}) and no {INDEX}'
      ' that says which to read; fetch the index, or leave one file there.'
    )
  return files[0]


def save_tensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a file of tensors, whole or not at all.

  Raises:
    OSError: It cannot be written; names the file.
  """
  from safetensors.numpy import save_file

  with atomic.replace_file(file) as part:
    save_file(dict(tensors), part, metadata={'format': 'pt'})
