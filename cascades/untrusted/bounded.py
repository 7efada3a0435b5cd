"""Reading files of others within bounds: of size, of number, of depth.

A bound is a hundred times what the largest known file of a kind has, or more,
so that it refuses nothing but what was made to fill the memory. What is packed
is read as a stream, since little of it may unpack to much.
"""

import gzip
import io
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cascades.untrusted import display


class Bounds(NamedTuple):
  """The most that a file, or a line of one, may hold.

  Attributes:
    size: In bytes.
    values: Of JSON, at most: each takes some 64 bytes once it is read.
    containers: Of these, lists and objects, which take up to 200 bytes each.
  """

  size: int
  values: int
  containers: int


# A config.json has 15 KB; an index of tensors 110 KB and 1,300 values.
FIELDS = Bounds(2**24, 2**20, 2**16)
# A tokenizer.json of Gemma's has 33 MB, and 1.8 million values: 262,144 pieces
# and their pairs; a set such as SQuAD has 40 MB.
TABLE = Bounds(2**32, 2**28, 2**26)
# A block of a trace with whole rows has 700 KB and 35,000 values.
LINE = Bounds(2**26, 2**22, 2**16)
# Halves of a surrogate pair, spelled; with what must not be taken for one.
_SPELLED = re.compile(
  r'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
  r'|\\(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.'
)
# Of a line, read at a time.
_PIECE = 2**20
# Of a packed file, unpacked.
_UNPACKED = 2**34


def read_bytes(
  path: pathlib.Path,
  option: str,
  advice: str,
  most: int = FIELDS.size,
  start: bytes = b'',
) -> bytes:
  """Reads a file of at most so many bytes.

  Args:
    path: The file.
    option: What the user gave the file or its folder for, for errors.
    advice: What the user can do about a file that is refused.
    most: Bytes of the file.
    start: What it begins with.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is no regular file, larger, or begins otherwise; a pipe would
      never end.
  """
  check_regular(path, option, advice)
  if path.stat().st_size > most:
    raise _refusal(path, f'it has more than {most} bytes', option, advice)
  with path.open('rb') as file:
    if file.read(len(start)) != start:
      raise _refusal(path, 'it is of another kind', option, advice)
    return start + file.read()


def check_regular(path: pathlib.Path, option: str, advice: str) -> None:
  """Refuses a folder, a pipe, a device.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is none that can be read to its end.
  """
  # Raises where nothing is; follows links, as the hub's cache has them.
  path.stat()
  if not path.is_file():
    raise _refusal(path, 'it is no regular file', option, advice)


def read_json(
  path: pathlib.Path,
  option: str,
  advice: str = 'fetch it again',
  bounds: Bounds = FIELDS,
) -> Any:
  """Reads a file of JSON.

  Args:
    path: The file.
    option: What the user gave the file or its folder for, for errors.
    advice: What the user can do about a file that is refused.
    bounds: The most that it may hold.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is no JSON, or beyond a bound.
  """
  text = read_bytes(path, option, advice, bounds.size)
  try:
    return parse_json(text, bounds)
  except ValueError as error:
    raise _refusal(path, str(error), option, advice) from None


def read_fields(
  path: pathlib.Path, option: str, advice: str = 'fetch it again'
) -> dict[str, Any]:
  """Reads a file whose JSON is one object; see `read_json`.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It holds anything else.
  """
  found = read_json(path, option, advice)
  if not isinstance(found, dict):
    raise _refusal(path, 'it is no JSON object', option, advice)
  return found


def parse_json(text: bytes | bytearray | str, bounds: Bounds = LINE) -> Any:
  """Parses JSON of others.

  Returns:
    What it says; U+FFFD stands for half of a surrogate pair.

  Raises:
    ValueError: It is none, holds more values than it may, or is nested as no
      known file is.
  """
  signs = '[{,' if isinstance(text, str) else (b'[', b'{', b',')
  # As many as there are, or more: texts have such signs too.
  lists, tables, commas = map(text.count, signs)
  if lists + tables + commas > bounds.values:
    raise ValueError(f'it holds more than {bounds.values} values')
  if lists + tables > bounds.containers:
    raise ValueError(f'it holds more than {bounds.containers} lists')
  try:
    text = text if isinstance(text, str) else text.decode('utf-8-sig')
  except UnicodeDecodeError:
    raise ValueError('it is no text in UTF-8') from None
  if '\\ud' in text or '\\uD' in text:
    # Half of a pair is no character, and ends whatever writes it.
    text = _SPELLED.sub(lambda x: '\\ufffd' if x['half'] else x[0], text)
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError('it is nested too deeply') from None
  except ValueError as error:
    raise ValueError(f'it is damaged ({error})') from None


def read_lines(
  path: pathlib.Path,
  refuse: Callable[[int, str], ValueError],
  bounds: Bounds = LINE,
) -> Iterator[bytes | bytearray]:
  """Reads a file line by line; unpacks it, where its name ends in '.gz'.

  Args:
    path: The file.
    refuse: Makes the error of a line, of its number and of what is wrong.
    bounds: The most that a line may hold.

  Yields:
    Each line with its end, which the last one may lack.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is no regular file, cannot be unpacked, or a line is too
      long.
  """
  path.stat()
  if not path.is_file():
    raise refuse(1, 'it is no regular file')
  opened = gzip.open if path.suffix == '.gz' else open
  number, room = 1, _UNPACKED
  with opened(path, 'rb') as file:
    while True:
      try:
        line = _line(file, bounds.size)
      except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refuse(number, str(error)) from None
      if not line:
        return
      room -= len(line)
      if len(line) > bounds.size:
        raise refuse(number, f'it has more than {bounds.size} bytes')
      if room < 0:
        raise refuse(number, f'it comes after {_UNPACKED} bytes')
      yield line
      number += 1


def _line(file: io.BufferedIOBase, most: int) -> bytes | bytearray:
  """Reads a line, or a little more than so many bytes of a longer one."""
  line = file.readline(_PIECE)
  if len(line) < _PIECE:
    return line
  # What grows in its place takes half of what is joined at the end.
  whole = bytearray(line)
  while len(whole) <= most and not whole.endswith(b'\n'):
    if not (line := file.readline(_PIECE)):
      break
    whole += line
  return whole


def _refusal(
  what: pathlib.Path | str, why: str, option: str, advice: str
) -> ValueError:
  """Makes the error of a file: `<option>: <file>: <why>; <advice>.`."""
  return ValueError(
    f'{option}: {display.printable(f"{what}: {why}")}; {advice}.'
  )
