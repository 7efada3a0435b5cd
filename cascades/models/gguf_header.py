"""Reads the header of a GGUF file: its fields and the offsets of its tensors.

The reader of the public `gguf` library takes ten seconds and most of a gigabyte
for Gemma's 262,144 tokens.

Source: ggml's docs/gguf.md.
"""

import functools
import itertools
import math
import os
import pathlib
import struct
import types
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cascades import extras
from cascades.untrusted import bounded

MAGIC = b'GGUF'
# Types of values in a header; all others are scalars.
_STRING, _ARRAY = 8, 9
# Bytes that are read without a check of the size of the file.
_UNCHECKED = 2**16
# Letters of scalars in `struct`, by the number of their type.
_SCALARS = dict(enumerate('BbHhIif?')) | {10: 'Q', 11: 'q', 12: 'd'}


class Tensor(NamedTuple):
  """The place of a tensor in a file."""

  shape: tuple[int, ...]
  kind: Any
  at: int
  size: int


class File(NamedTuple):
  """The header of a file."""

  path: pathlib.Path
  fields: dict[str, Any]
  tensors: dict[str, Tensor]

  @property
  def family(self) -> str:
    """The architecture, as llama.cpp names it."""
    return str(self.fields.get('general.architecture'))

  def under(self, prefix: str) -> dict[str, Any]:
    """Returns the fields whose names have a prefix, by the rest of the name."""
    return {
      name.removeprefix(prefix): value
      for name, value in self.fields.items()
      if name.startswith(prefix)
    }


def library() -> types.ModuleType:
  """Imports and returns the `gguf` library, an optional dependency."""
  try:
    import gguf
  except ModuleNotFoundError as error:
    raise ValueError(extras.missing('model', 'gguf', 'gguf')) from error
  return gguf


def has_magic(path: pathlib.Path) -> bool:
  """Returns True if a file begins as GGUF files do."""
  with path.open('rb') as file:
    return file.read(len(MAGIC)) == MAGIC


def read_header(path: pathlib.Path) -> File:
  """Reads the fields of a file and the places of its tensors."""
  bounded.check_regular(path, 'model', 'fetch it again')
  with path.open('rb') as file:
    magic, version_bytes = file.read(4), file.read(4)
    if magic != MAGIC:
      raise ValueError(
        f'model: {path} is not a GGUF file; give one, or a folder that holds a'
        ' model.'
      )
    version = int.from_bytes(version_bytes, 'little')
    if version not in (2, 3):
      raise ValueError(
        f'model: {path} is GGUF version {version}, and only versions 2 and 3'
        ' are supported; convert it again.'
      )
    try:
      return _read_rest(path, file)
    # A damaged header has wrong lengths or texts, or the file ends early.
    except (
      *(EOFError, MemoryError, OverflowError),
      *(struct.error, UnicodeDecodeError),
    ) as e:
      raise ValueError(
        f'model: {path} is cut short or damaged; fetch it again.'
      ) from e


def _read_rest(path: pathlib.Path, file: BinaryIO) -> File:
  """Reads the part of a header after the version."""
  end = path.stat().st_size
  fields: dict[str, Any] = {}
  tensors: dict[str, Tensor] = {}
  num_tensors, num_fields = _read_scalars(file, 'Q', 2)
  if max(num_tensors, num_fields) > end:
    raise EOFError
  for _ in range(num_fields):
    name = _read_text(file)
    if name in fields:
      raise ValueError(
        f'model: {path} has the field {name} twice; fetch it again.'
      )
    fields[name] = _read_value(file, end)
  headers = [_read_tensor_header(file) for _ in range(num_tensors)]
  alignment = fields.get('general.alignment', 32)
  if not isinstance(alignment, int) or alignment < 1:
    raise EOFError
  start = -(-file.tell() // alignment) * alignment
  for name, shape, type_number, offset in headers:
    if name in tensors:
      raise ValueError(
        f'model: {path} has the tensor {name} twice; fetch it again.'
      )
    kind, size = _type_and_size(path, name, shape, type_number)
    tensors[name] = Tensor(shape, kind, start + offset, size)
    if start + offset + size > end or offset % alignment:
      raise EOFError
  _check_disjoint(path, tensors)
  return File(path, fields, tensors)


def _read_tensor_header(
  file: BinaryIO,
) -> tuple[str, tuple[int, ...], int, int]:
  """Reads name, shape, number of the type, and offset of a tensor."""
  name, (axes,) = _read_text(file), _read_scalars(file, 'I')
  if not 1 <= axes <= 4:
    raise EOFError
  shape = _read_scalars(file, 'Q', axes)[::-1]
  (type_number,), (offset,) = _read_scalars(file, 'I'), _read_scalars(file, 'Q')
  return name, shape, type_number, offset


def _check_disjoint(path: pathlib.Path, tensors: Mapping[str, Tensor]) -> None:
  """Refuses tensors that overlap."""
  nonempty = ((name, x) for name, x in tensors.items() if x.size)
  by_offset = sorted(nonempty, key=lambda item: item[1].at)
  for (name, tensor), (next_name, next_tensor) in itertools.pairwise(by_offset):
    if tensor.at + tensor.size > next_tensor.at:
      raise ValueError(
        f'model: {path} has the overlapping tensors {name} and {next_name};'
        ' fetch it again.'
      )


def _read_bytes(file: BinaryIO, count: int) -> bytes:
  """Reads bytes."""
  # Python allocates the bytes before it reads them.
  if count > _UNCHECKED and count > os.fstat(file.fileno()).st_size:
    raise EOFError
  data = file.read(count)
  if len(data) < count:
    raise EOFError
  return data


def _read_scalars(file: BinaryIO, code: str, count: int = 1) -> tuple:
  """Reads little-endian numbers, by their letter in `struct`."""
  layout = f'<{count}{code}'
  return struct.unpack(layout, _read_bytes(file, struct.calcsize(layout)))


def _read_text(file: BinaryIO) -> str:
  """Reads a text, which its length precedes."""
  (length,) = _read_scalars(file, 'Q')
  return _read_bytes(file, length).decode()


def _read_value(file: BinaryIO, end: int) -> Any:
  """Reads a value, which its type precedes."""
  (kind,) = _read_scalars(file, 'I')
  if kind == _STRING:
    return _read_text(file)
  if kind != _ARRAY:
    return _read_scalars(file, _struct_code(kind))[0]
  (kind,), (count,) = _read_scalars(file, 'I'), _read_scalars(file, 'Q')
  if count > end:
    raise EOFError
  if kind == _STRING:
    return [_read_text(file) for _ in range(count)]
  return _read_array(file, _struct_code(kind), count)


def _read_array(file: BinaryIO, code: str, count: int) -> np.ndarray:
  """Reads numbers into an array of their size in the file."""
  # Any byte but 0 is true, as in `struct`.
  dtype = np.dtype('u1' if code == '?' else f'<{code}')
  array = np.frombuffer(_read_bytes(file, count * dtype.itemsize), dtype)
  return array != 0 if code == '?' else array


def _struct_code(kind: int) -> str:
  """Returns the letter of a type of numbers in `struct`."""
  if kind not in _SCALARS:
    raise EOFError
  return _SCALARS[kind]


def _type_and_size(
  path: pathlib.Path, name: str, shape: tuple[int, ...], type_number: int
) -> tuple[Any, int]:
  """Returns the type of a tensor, and its size in bytes."""
  block_type = _block_type(type_number)
  if block_type is None:
    raise ValueError(
      f'model: {path} has the tensor {name} of type {type_number}, which is not'
      ' supported; give a file in F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K'
      ' or Q6_K.'
    )
  kind, block, size = block_type
  if shape[-1] % block:
    raise ValueError(
      f'model: {path} has the tensor {name} with rows of {shape[-1]} numbers,'
      f' and {kind.name} has blocks of {block}; fetch it again.'
    )
  return kind, math.prod(shape) // block * size


@functools.cache
def _block_type(type_number: int) -> tuple[Any, int, int] | None:
  """Returns a type with the numbers and the bytes of one of its blocks."""
  gguf = library()
  try:
    kind = gguf.GGMLQuantizationType(type_number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Dequantises one block, since the library lists types that it cannot read.
    gguf.dequantize(np.zeros((1, size), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    return None
  return kind, block, size
