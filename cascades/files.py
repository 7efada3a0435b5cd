"""Files: strangers' are read within bounds, and ours are written whole.

A file of somebody else may be damaged or malicious. Every fault is a ValueError
of one sentence that names the file; memory is bounded by the file's own size.
Each kind of JSON file is a `Schema` with a typed field for each field that is
read. Types are strict: texts, true, NaN and infinity are no numbers.

A file of ours is written beside its destination and renamed at the end: on a
full disk the destination stays as it was, and the error names it.
"""

import contextlib
import errno
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import traceback
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Self

import pydantic

from cascades import arguments

# Bytes of a file, of a line and of all lines; a hundred times those of known
# files, such as a config.json (15 KB) and a block of a trace (700 KB).
MAX_FILE, MAX_LINE, _MAX_LINES = 2**24, 2**26, 2**34
# Bytes of a line that are read at a time.
_CHUNK = 2**20
# More than any size of a model; fits 32 bits.
_MAX_COUNT = 2**31 - 1
Count = Annotated[int, pydantic.Field(ge=0, le=_MAX_COUNT)]
Size = Annotated[int, pydantic.Field(ge=1, le=_MAX_COUNT)]
Number = Annotated[float, pydantic.Field(ge=-1e30, le=1e30)]
NotNegative = Annotated[float, pydantic.Field(ge=0, le=1e30)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e30)]
# Ends the check of a list at its first wrong item: an error takes a kilobyte.
FailFast = pydantic.Field(fail_fast=True)
# Ends of lines, and invisible characters that join letters and emoji.
_VISIBLE = '\n\t\u200c\u200d'
# Blank letters and symbols: fillers of Hangul, an empty Braille cell.
_BLANK = '\u115f\u1160\u3164\uffa0\u2800'
# The beginning of a URL, and the characters that end one.
_SCHEME, _END = r'\w[\w+.-]*://', r'\s\'"<>'


def is_invisible(character: str) -> bool:
  """Returns True if a character is blank, or controls its surroundings."""
  # Control, format, half of a surrogate pair, ends of lines.
  is_control = unicodedata.category(character) in 'Cc Cf Cs Zl Zp'.split()
  return character not in _VISIBLE and (is_control or character in _BLANK)


def printable(text: str) -> str:
  r"""Returns a text with control characters as Python's escapes: '\x1b'."""
  escaped = filter(is_invisible, {*text})
  return text.translate(
    {ord(c): c.encode('unicode_escape').decode() for c in escaped}
  )


def sentence(text: str) -> str:
  """Returns a message as one line without secrets, cut in its middle."""
  text = printable(' '.join(without_secrets(text).split()))
  return text if len(text) <= 1000 else f'{text[:500]} ... {text[-500:]}'


def without_secrets(text: str) -> str:
  """Returns a text whose URLs have no user, password, query or fragment."""
  text = re.sub(rf'({_SCHEME})[^?#{_END}]*@', r'\1***@', text)
  return re.sub(rf'({_SCHEME}[^?#{_END}]*)[?#][^{_END}]*', r'\1?***', text)


def _refusal(
  path: pathlib.Path, reason: str, option: str, advice: str
) -> ValueError:
  return ValueError(f'{option}: {printable(f"{path}: {reason}")}; {advice}.')


def check_regular(path: pathlib.Path, option: str, advice: str) -> None:
  """Refuses folders, pipes and devices, but not links to files."""
  path.stat()
  if not path.is_file():
    raise _refusal(path, 'it is not a regular file', option, advice)


def read_bytes(
  path: pathlib.Path, option: str, advice: str, max_bytes: int = MAX_FILE
) -> bytes:
  """Reads a file of bounded size."""
  check_regular(path, option, advice)
  if path.stat().st_size > max_bytes:
    raise _refusal(path, f'it has more than {max_bytes} bytes', option, advice)
  return path.read_bytes()


def read_json(
  path: pathlib.Path,
  option: str,
  advice: str = 'fetch it again',
  max_bytes: int = MAX_FILE,
) -> Any:
  """Reads a JSON file."""
  text = read_bytes(path, option, advice, max_bytes)
  try:
    # A tokenizer.json of Gemma's has a list for 57 of its bytes.
    return parse_json(text, max_lists=max_bytes // 2**8)
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


def parse_json(text: bytes | bytearray | str, max_lists: int = 2**16) -> Any:
  """Parses untrusted JSON of so many lists and objects, and 64 values for each.

  A list takes thirty times the memory of its text.
  """
  try:
    text = text if isinstance(text, str) else text.decode('utf-8-sig')
  except UnicodeDecodeError:
    raise ValueError('it is not UTF-8 text') from None
  # Upper bounds, since texts may contain these characters.
  if text.count('[') + text.count('{') > max_lists:
    raise ValueError(f'it holds more than {max_lists} lists')
  if text.count(',') > 64 * max_lists:
    raise ValueError(f'it holds more than {64 * max_lists} values')
  try:
    value = json.loads(text)
    # Half of a surrogate pair is no character, and writing it raises an error.
    if '\\ud' in text or '\\uD' in text:
      text = json.dumps(value, ensure_ascii=False)
      text = text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
      value = json.loads(text)
    return value
  except RecursionError:
    raise ValueError('it is nested too deeply') from None
  except ValueError as error:
    raise ValueError(f'it is damaged ({error})') from None


def read_lines(
  path: pathlib.Path, refuse: Callable[[int, str], ValueError]
) -> Iterator[bytearray]:
  """Reads a file line by line; unpacks it if its name ends in '.gz'."""
  path.stat()
  if not path.is_file():
    raise refuse(1, 'it is not a regular file')
  with path.open('rb') as file:
    yield from split_lines(file, refuse, path.suffix == '.gz')


def split_lines(
  file: io.IOBase,
  refuse: Callable[[int, str], ValueError],
  is_compressed: bool = False,
) -> Iterator[bytearray]:
  """Reads an open file line by line; see `read_lines`."""
  total = 0
  with gzip.open(file) if is_compressed else file as unpacked:
    for number in itertools.count(1):
      # A growing array takes half of the memory of chunks that are joined.
      line = bytearray()
      try:
        while len(line) <= MAX_LINE and not line.endswith(b'\n'):
          if not (chunk := unpacked.readline(_CHUNK)):
            break
          line += chunk
      except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refuse(number, str(error)) from None
      total += len(line)
      if len(line) > MAX_LINE or total > _MAX_LINES:
        bounds = f'{MAX_LINE} bytes, or the file more than {_MAX_LINES}'
        raise refuse(number, f'it has more than {bounds}')
      if not line:
        return
      yield line


def sibling(folder: pathlib.Path, name: Any, location: str) -> pathlib.Path:
  """Returns the path of a file in a folder by its plain name.

  The file itself may be a link, as in the hub's cache.
  """
  is_text = isinstance(name, str) and name not in ('', '.', '..')
  if not is_text or {'/', '\\', '\0'} & {*name} or len(name) > 255:
    raise ValueError(
      f'{location} must name a file beside it, got {arguments.quote(name)};'
      ' fetch it again.'
    )
  return folder / name


def one_of(*allowed: Any) -> pydantic.PlainValidator:
  """Returns a validator of a field with a few allowed values.

  Used as `Annotated[Any, one_of(...)]`. Floats are compared as in float32,
  and null equals False.
  """

  def is_equal(value: Any, x: Any) -> bool:
    if type(value) is not type(x):
      return value is None and x is False
    is_float = isinstance(x, float)
    return math.isclose(value, x, rel_tol=1e-7) if is_float else value == x

  def check(field: Any) -> Any:
    if any(is_equal(field, x) for x in allowed):
      return field
    raise ValueError(f'Input should be {" or ".join(map(repr, allowed))}')

  return pydantic.PlainValidator(check)


class Schema(pydantic.BaseModel):
  """Base class of the fields of a kind of file; other fields are kept."""

  model_config = pydantic.ConfigDict(
    strict=True,
    extra='allow',
    frozen=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    # Files have names such as model_type, which pydantic reserves.
    protected_namespaces=(),
  )

  @classmethod
  def check(
    cls, fields: Any, location: str, advice: str = 'fetch it again'
  ) -> Self:
    """Returns the fields of a file, each of its type and within its range."""
    try:
      return cls.parse(fields)
    except ValueError as error:
      raise ValueError(f'{location}: {error}; {advice}.') from None

  @classmethod
  def parse(cls, fields: Any) -> Self:
    """Returns checked fields; errors do not name the file."""
    if not isinstance(fields, Mapping):
      raise ValueError('it is not a JSON object')
    try:
      return cls.model_validate(dict(fields))
    except pydantic.ValidationError as error:
      errors = error.errors(include_url=False, include_context=False)
    # Of a field of several types, the error of a list's item tells most.
    wrong = max(errors, key=lambda x: len(x['loc']))
    name = sentence('.'.join(map(str, wrong['loc'])))
    short = {'missing': 'is missing', 'extra_forbidden': 'is not a known field'}
    if wrong['type'] in short:
      raise ValueError(f'{name} {short[wrong["type"]]}')
    message = wrong['msg'].removeprefix('Value error, ')
    message = message.replace('Input should be', 'must be')
    raise ValueError(f'{name} {message}, got {arguments.quote(wrong["input"])}')


def plain(value: Any) -> Any:
  """Returns a value for JSON, with numbers that are not finite as text."""
  if isinstance(value, Mapping):
    return {name: plain(v) for name, v in value.items()}
  if isinstance(value, list | tuple):
    return [plain(v) for v in value]
  is_number = not isinstance(value, float) or math.isfinite(value)
  return value if is_number else str(value)


def digest(value: Any) -> str:
  """Returns the SHA-256 of a JSON value; the order of fields is ignored."""
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def write_text(path: str | pathlib.Path, text: str) -> None:
  """Writes a text file, in UTF-8."""
  write_bytes(pathlib.Path(path), text.encode())


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a binary file."""
  with replace_file(path) as part:
    part.write_bytes(content)


@contextlib.contextmanager
def replace_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces a file by the file that the caller writes."""
  with replace_files(path.parent, path.name) as part:
    yield part / path.name


@contextlib.contextmanager
def replace_files(
  folder: pathlib.Path, name: str = ''
) -> Iterator[pathlib.Path]:
  """Replaces files of a folder by those that the caller writes in another."""
  with name_path_in_errors(folder / name):
    folder.mkdir(parents=True, exist_ok=True)
    # Inside of the folder, since its parent may be on another disk.
    part = folder / f'.{secrets.token_hex(8)}.part'
    part.mkdir()
    try:
      yield part
      mask = os.umask(0)
      os.umask(mask)
      new_files = sorted(part.iterdir())
      for file in new_files:
        old = folder / file.name
        # Some libraries, such as safetensors, write for their owner only.
        file.chmod(
          old.stat().st_mode & 0o777 if old.exists() else 0o666 & ~mask
        )
        # A disk may be full only when the data is written to it.
        with name_path_in_errors(old), file.open('rb') as opened:
          os.fsync(opened.fileno())
      for file in new_files:
        os.replace(file, folder / file.name)
    finally:
      shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def name_path_in_errors(path: pathlib.Path) -> Iterator[None]:
  """Adds a path to errors of the system that name none."""
  try:
    yield
  except OSError as error:
    file = pathlib.Path(str(error.filename or path))
    if file.suffix == '.part':
      file = path
    elif file.parent.suffix == '.part':
      file = file.parent.parent / file.name
    if not error.errno or str(file) == str(error.filename):
      raise
    raise OSError(error.errno, error.strerror, str(file)) from None
  except Exception as error:
    # A library's error may be caused by a full disk, or say so.
    text = ''.join(traceback.format_exception(error))
    for code in errno.ENOSPC, errno.EDQUOT, errno.EFBIG:
      if os.strerror(code) in text or f'(os error {code})' in text:
        raise OSError(code, os.strerror(code), str(path)) from error
    raise
