"""What stands at the beginning of a GGUF file: fields, and where tensors lie.

The public `gguf` library's reader takes ten seconds and most of a gigabyte for
Gemma's 262,144 tokens, so that headers are read here.

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

# Of the types of values in a header: strings and arrays hold others.
_STRING, _ARRAY = 8, 9
_SOME = 2**16
_SCALARS = dict(enumerate('BbHhIif?')) | {10: 'Q', 11: 'q', 12: 'd'}


class Tensor(NamedTuple):
  """Where a tensor lies in a file.

  Attributes:
    shape: As numpy has it: rows first.
    kind: Its type, a `gguf.GGMLQuantizationType`.
    at: Its first byte.
    size: Its bytes.
  """

  shape: tuple[int, ...]
  kind: Any
  at: int
  size: int


class File(NamedTuple):
  """The header of a file.

  Attributes:
    path: The file.
    fields: What it says of itself, by name; numbers of a list as an array.
    tensors: By name.
  """

  path: pathlib.Path
  fields: dict[str, Any]
  tensors: dict[str, Tensor]

  @property
  def family(self) -> str:
    """llama.cpp's name of the architecture."""
    return str(self.fields.get('general.architecture'))

  def under(self, prefix: str) -> dict[str, Any]:
    """The fields whose names begin so, by what follows."""
    return {
      name.removeprefix(prefix): value
      for name, value in self.fields.items()
      if name.startswith(prefix)
    }


def library() -> types.ModuleType:
  """Imports the `gguf` library, an optional dependency.

  Raises:
    ValueError: It is not installed.
  """
  try:
    import gguf
  except ModuleNotFoundError as error:
    raise ValueError(extras.missing('model', 'gguf', 'gguf')) from error
  return gguf


def read_header(path: pathlib.Path) -> File:
  """What a file says of itself, and where its tensors lie.

  Raises:
    ValueError: It is no GGUF file, of a version or a type that is not known, or
      cut short.
  """
  bounded.check_regular(path, 'model', 'fetch it again')
  with path.open('rb') as file:
    magic, version = file.read(4), file.read(4)
    if magic != b'GGUF':
      raise ValueError(
        f'model: {path} is no GGUF file; give one, or a folder that holds a'
        ' model.'
      )
    version = int.from_bytes(version, 'little')
    if version not in (2, 3):
      raise ValueError(
        f'model: {path} is GGUF of version {version}, and 2 and 3 can be read;'
        ' convert it anew.'
      )
    try:
      return _read_rest(path, file)
    # Whatever a damaged header leads to: lengths that make no sense, texts that
    # are none, an end before the end.
    except (
      *(EOFError, MemoryError, OverflowError),
      *(struct.error, UnicodeDecodeError),
    ) as e:
      raise ValueError(
        f'model: {path} is cut short or damaged; fetch it again.'
      ) from e


def _read_rest(path: pathlib.Path, file: BinaryIO) -> File:
  """What comes after the version."""
  end = path.stat().st_size
  tensors, fields = {}, {}
  count, of_fields = _scalars(file, 'Q', 2)
  if max(count, of_fields) > end:
    raise EOFError
  for _ in range(of_fields):
    name = _text(file)
    fields[name] = _value(file, end)
  headers = []
  for _ in range(count):
    name, (axes,) = _text(file), _scalars(file, 'I')
    if not 1 <= axes <= 4:
      raise EOFError
    shape = _scalars(file, 'Q', axes)[::-1]
    kind, at = *_scalars(file, 'I'), *_scalars(file, 'Q')
    headers.append((name, shape, kind, at))
  step = fields.get('general.alignment', 32)
  if not isinstance(step, int) or step < 1:
    raise EOFError
  start = -(-file.tell() // step) * step
  for name, shape, kind, at in headers:
    if name in tensors:
      raise ValueError(
        f'model: {path} has the tensor {name} twice; fetch it again.'
      )
    kind, size = _size(path, name, shape, kind)
    tensors[name] = Tensor(shape, kind, start + at, size)
    if start + at + size > end or at % step:
      raise EOFError
  _check_apart(path, tensors)
  return File(path, fields, tensors)


def _check_apart(path: pathlib.Path, tensors: Mapping[str, Tensor]) -> None:
  """Refuses tensors of which one lies in another.

  Raises:
    ValueError: Two share bytes.
  """
  inside = ((name, x) for name, x in tensors.items() if x.size)
  in_order = sorted(inside, key=lambda item: item[1].at)
  for (one, first), (other, second) in itertools.pairwise(in_order):
    if first.at + first.size > second.at:
      raise ValueError(
        f'model: {path} has the tensors {one} and {other} in one place; fetch'
        ' it again.'
      )


def _bytes(file: BinaryIO, count: int) -> bytes:
  """The next bytes.

  Raises:
    EOFError: There are fewer.
  """
  # What is asked for is laid out before it is read, however much it is.
  if count > _SOME and count > os.fstat(file.fileno()).st_size:
    raise EOFError
  found = file.read(count)
  if len(found) < count:
    raise EOFError
  return found


def _scalars(file: BinaryIO, code: str, count: int = 1) -> tuple:
  """The next numbers, little-endian, by their letter in `struct`."""
  layout = f'<{count}{code}'
  return struct.unpack(layout, _bytes(file, struct.calcsize(layout)))


def _text(file: BinaryIO) -> str:
  """The next text."""
  return _bytes(file, *_scalars(file, 'Q')).decode()


def _value(file: BinaryIO, end: int) -> Any:
  """The next value, whose type stands before it."""
  (kind,) = _scalars(file, 'I')
  if kind == _STRING:
    return _text(file)
  if kind != _ARRAY:
    return _scalars(file, _code(kind))[0]
  (kind,), (count,) = _scalars(file, 'I'), _scalars(file, 'Q')
  if count > end:
    raise EOFError
  if kind == _STRING:
    return [_text(file) for _ in range(count)]
  return _numbers(file, _code(kind), count)


def _numbers(file: BinaryIO, code: str, count: int) -> np.ndarray:
  """The next numbers, in no more memory than they take in the file."""
  # Any byte but 0 is true, as `struct` has it.
  dtype = np.dtype('u1' if code == '?' else f'<{code}')
  found = np.frombuffer(_bytes(file, count * dtype.itemsize), dtype)
  return found != 0 if code == '?' else found


def _code(kind: int) -> str:
  """The letter of a type of numbers."""
  if kind not in _SCALARS:
    raise EOFError
  return _SCALARS[kind]


def _size(
  path: pathlib.Path, name: str, shape: tuple[int, ...], number: int
) -> tuple[Any, int]:
  """A tensor's type by its number, and its bytes.

  Raises:
    ValueError: There is no such type, or nobody can read it, or its blocks do
      not fit the tensor's rows.
  """
  found = _blocks(number)
  if found is None:
    raise ValueError(
      f'model: {path} has the tensor {name} of type {number}, which cannot be'
      ' read; give a file in F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K or'
      ' Q6_K.'
    )
  kind, block, size = found
  if shape[-1] % block:
    raise ValueError(
      f'model: {path} has the tensor {name} with rows of {shape[-1]} numbers,'
      f' and {kind.name} has blocks of {block}; fetch it again.'
    )
  return kind, math.prod(shape) // block * size


@functools.cache
def _blocks(number: int) -> tuple[Any, int, int] | None:
  """A type by its number, with the numbers and the bytes of a block.

  None if there is no such type, or nobody can read it.
  """
  gguf = library()
  try:
    kind = gguf.GGMLQuantizationType(number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Of one block, which says whether it can.
    gguf.dequantize(np.zeros((1, size), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    return None
  return kind, block, size
