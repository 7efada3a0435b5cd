"""Reads untrusted files within bounds of size, number and depth.

A bound is at least a hundred times the size of the largest known file of its
kind, so that it refuses only files that were made to fill the memory.
Compressed files are read as a stream, since a small one may unpack to much.
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
  """Upper bounds of a file, or of a line of a file."""

  size: int
  values: int
  containers: int


# A config.json has 15 KB; an index of tensors 110 KB and 1,300 values.
FIELDS = Bounds(2**24, 2**20, 2**16)
# A tokenizer.json of Gemma's has 33 MB and 1.8 million values: 262,144 pieces
# and their pairs.
TABLE = Bounds(2**32, 2**28, 2**26)
# A block of a trace with full distributions has 700 KB and 35,000 values.
LINE = Bounds(2**26, 2**22, 2**16)
# Escaped halves of a surrogate pair; the other branches match whole pairs and
# other escapes, which must stay.
_ESCAPES = re.compile(
  r'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
  r'|\\(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.'
)
# Bytes of a line that are read at a time.
_CHUNK = 2**20
# Largest sum of all lines; bounds a compressed file that is unpacked.
_MAX_UNPACKED = 2**34


def read_bytes(
  path: pathlib.Path,
  option: str,
  advice: str,
  max_bytes: int = FIELDS.size,
  prefix: bytes = b'',
) -> bytes:
  """Reads a file of bounded size."""
  check_regular(path, option, advice)
  if path.stat().st_size > max_bytes:
    raise _refusal(path, f'it has more than {max_bytes} bytes', option, advice)
  with path.open('rb') as file:
    if file.read(len(prefix)) != prefix:
      raise _refusal(path, 'its first bytes are wrong', option, advice)
    return prefix + file.read()


def check_regular(path: pathlib.Path, option: str, advice: str) -> None:
  """Refuses folders, pipes and devices."""
  # Follows links, which the hub's cache consists of.
  path.stat()
  if not path.is_file():
    raise _refusal(path, 'it is not a regular file', option, advice)


def read_json(
  path: pathlib.Path,
  option: str,
  advice: str = 'fetch it again',
  bounds: Bounds = FIELDS,
) -> Any:
  """Reads a JSON file."""
  text = read_bytes(path, option, advice, bounds.size)
  try:
    return parse_json(text, bounds)
  except ValueError as error:
    raise _refusal(path, str(error), option, advice) from None


def read_fields(
  path: pathlib.Path, option: str, advice: str = 'fetch it again'
) -> dict[str, Any]:
  """Reads a JSON file that holds one object."""
  content = read_json(path, option, advice)
  if not isinstance(content, dict):
    raise _refusal(path, 'it is not a JSON object', option, advice)
  return content


def parse_json(text: bytes | bytearray | str, bounds: Bounds = LINE) -> Any:
  """Parses untrusted JSON."""
  # Counts are upper bounds, since strings may contain these characters.
  if isinstance(text, str):
    lists, objects, commas = map(text.count, '[{,')
  else:
    lists, objects, commas = map(text.count, (b'[', b'{', b','))
  if lists + objects + commas > bounds.values:
    raise ValueError(f'it holds more than {bounds.values} values')
  if lists + objects > bounds.containers:
    raise ValueError(f'it holds more than {bounds.containers} lists')
  try:
    text = text if isinstance(text, str) else text.decode('utf-8-sig')
  except UnicodeDecodeError:
    raise ValueError('it is not UTF-8 text') from None
  if '\\ud' in text or '\\uD' in text:
    # Half of a pair is no character, and writing it raises an error.
    text = _ESCAPES.sub(lambda x: '\\ufffd' if x['half'] else x[0], text)
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
  """Reads a file line by line; unpacks it if its name ends in '.gz'."""
  path.stat()
  if not path.is_file():
    raise refuse(1, 'it is not a regular file')
  with path.open('rb') as file:
    yield from split_lines(file, refuse, bounds, path.suffix == '.gz')


def split_lines(
  file: io.IOBase,
  refuse: Callable[[int, str], ValueError],
  bounds: Bounds = LINE,
  is_compressed: bool = False,
) -> Iterator[bytes | bytearray]:
  """Reads an open file line by line; see `read_lines`."""
  number, bytes_left = 1, _MAX_UNPACKED
  with gzip.open(file) if is_compressed else file as unpacked:
    while True:
      try:
        line = _read_line(unpacked, bounds.size)
      except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refuse(number, str(error)) from None
      if not line:
        return
      bytes_left -= len(line)
      if len(line) > bounds.size:
        raise refuse(number, f'it has more than {bounds.size} bytes')
      if bytes_left < 0:
        raise refuse(number, f'it exceeds {_MAX_UNPACKED} bytes of text in all')
      yield line
      number += 1


def _read_line(file: io.IOBase, max_bytes: int) -> bytes | bytearray:
  """Reads a line, or more than `max_bytes` of a longer line."""
  line = file.readline(_CHUNK)
  if len(line) < _CHUNK:
    return line
  # A growing array takes half of the memory of chunks that are joined.
  long_line = bytearray(line)
  while len(long_line) <= max_bytes and not long_line.endswith(b'\n'):
    if not (line := file.readline(_CHUNK)):
      break
    long_line += line
  return long_line


def _refusal(
  path: pathlib.Path, reason: str, option: str, advice: str
) -> ValueError:
  """Returns the error of a file: `<option>: <file>: <reason>; <advice>.`."""
  return ValueError(
    f'{option}: {display.printable(f"{path}: {reason}")}; {advice}.'
  )
