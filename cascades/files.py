"""Files: strangers' are read within bounds, and ours are written whole.

A file of somebody else may be damaged or malicious. Every fault is a ValueError
of one sentence that names the file; memory is bounded by the file's own size.
Each kind of JSON file is a `Schema` with a typed field for each field that is
read. Types are strict: texts, true, NaN and infinity are no numbers.

A file of ours is written beside its destination and renamed at the end. If the
disk is full, or the process is interrupted, the destination stays as it was,
and the error names it.
"""

import contextlib
import errno
import gzip
import hashlib
import io
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Self

import pydantic

from cascades import arguments

# Bytes of a file, of a line and of all lines; a hundred times those of known
# files, such as a config.json (15 KB) and a block of a trace (700 KB).
MAX_FILE, MAX_LINE, _MAX_LINES = 2**24, 2**26, 2**34
# Bytes of a line that are read at a time.
_CHUNK = 2**20
# Escaped halves of a surrogate pair; the other branches match whole pairs and
# other escapes, which must stay.
_ESCAPES = re.compile(
  r'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
  r'|\\(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.'
)
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
_URL = re.compile(r'(\w[\w+.-]*://)([^\s\'"<>]+)')


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
  """Returns a text whose URLs have no password, token, query or fragment."""

  def hide(url: re.Match) -> str:
    place, *rest = re.split('[?#]', url[2], maxsplit=1)
    user, at, host = place.rpartition('@')
    name, colon, _ = user.partition(':')
    # An '@' after a '/' belongs to a path, unless a password contains the '/'.
    if at and ('/' not in user or (colon and '/' not in name)):
      place = f'{name if colon else ""}{colon}***@{host}'
    return url[1] + place + ('?***' if rest else '')

  return _URL.sub(hide, text)


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
  # Half of a pair is no character, and writing it raises an error.
  if '\\ud' in text or '\\uD' in text:
    text = _ESCAPES.sub(lambda x: '\\ufffd' if x['half'] else x[0], text)
  try:
    return json.loads(text)
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
  number, total = 0, 0
  with gzip.open(file) if is_compressed else file as unpacked:
    while True:
      number += 1
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


def sibling(folder: pathlib.Path, name: str, location: str) -> pathlib.Path:
  """Returns the path of a file in a folder by its plain name.

  The file itself may be a link, as in the hub's cache.
  """
  is_long = len(name.encode(errors='replace')) > 255
  if is_long or name in ('', '.', '..') or {'/', '\\', '\0'} & {*name}:
    raise ValueError(
      f'{location} must name a file beside it, got {arguments.quote(name)};'
      ' fetch it again.'
    )
  return folder / name


def check_tree(folder: pathlib.Path, exempt: Collection[str] = ()) -> None:
  """Refuses a workdir that contains a symbolic link at any depth.

  Data written to such a path would be written to the link's target.
  """
  for parent, folders, files in folder.walk():
    for path in map(parent.joinpath, (*folders, *files)):
      if path.is_symlink():
        raise ValueError(
          f'workdir: {path} is a symbolic link, which is not followed here;'
          ' replace it by its target.'
        )
    folders[:] = [x for x in folders if parent != folder or x not in exempt]


def one_of(*allowed: Any) -> pydantic.PlainValidator:
  """Returns a validator of a field with a few allowed values.

  Used as `Annotated[Any, one_of(...)]`. Floats are compared as in float32,
  and null equals False.
  """
  is_nullable = any(x is False for x in allowed)

  def equal(a: Any, b: Any) -> bool:
    is_float = isinstance(a, float) and isinstance(b, float)
    return math.isclose(a, b, rel_tol=1e-7) if is_float else a == b

  def check(field: Any) -> Any:
    value = False if field is None and is_nullable else field
    if any(type(value) is type(x) and equal(value, x) for x in allowed):
      return field
    raise ValueError(f'Input should be {" or ".join(map(repr, allowed))}')

  return pydantic.PlainValidator(check)


def _first_wrong(field: Any) -> Any:
  """Reduces an object to its first value that is no text."""
  items = field.items() if isinstance(field, dict) else ()
  wrong = [(k, v) for k, v in items if not isinstance(v, str)][:1]
  return dict(wrong) if wrong else field


Texts = Annotated[dict[str, str], pydantic.BeforeValidator(_first_wrong)]


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
  with name_path_in_errors(path), create_folder(path.parent):
    part = path.parent / f'.{secrets.token_hex(8)}.part'
    try:
      yield part
      _flush(part)
      # Some libraries, such as safetensors, write files for their owner only.
      mask = os.umask(0)
      os.umask(mask)
      mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask
      part.chmod(mode)
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces some files of a folder by the files that the caller writes."""
  with name_path_in_errors(folder), create_folder(folder):
    # Inside of the folder, since its parent may be on another disk.
    part = folder / f'.{secrets.token_hex(8)}.part'
    try:
      part.mkdir()
      yield part
      files = sorted(part.iterdir())
      for file in files:
        with name_path_in_errors(file):
          _flush(file)
      for file in files:
        os.replace(file, folder / file.name)
    except OSError as error:
      name = pathlib.Path(error.filename or part)
      if part in name.parents:
        error.filename = str(folder / name.name)
      raise
    finally:
      shutil.rmtree(part, ignore_errors=True)


def _flush(path: pathlib.Path) -> None:
  """Waits until the data of a file is on the disk: it may be full only then."""
  with path.open('rb') as file:
    os.fsync(file.fileno())


@contextlib.contextmanager
def name_path_in_errors(path: pathlib.Path) -> Iterator[None]:
  """Adds a path to errors of the system that name none."""
  try:
    yield
  except OSError as error:
    is_temporary = str(error.filename or '').endswith('.part')
    if error.errno and (not error.filename or is_temporary):
      raise OSError(error.errno, error.strerror, str(path)) from None
    raise
  except Exception as error:
    # A library's error may be caused by a full disk, or say so.
    cause: BaseException | None = error
    while cause is not None:
      for code in errno.ENOSPC, errno.EDQUOT, errno.EFBIG:
        text = os.strerror(code)
        if text in str(cause) or f'(os error {code})' in str(cause):
          raise OSError(code, text, str(path)) from error
      cause = cause.__cause__
    raise


@contextlib.contextmanager
def create_folder(path: pathlib.Path) -> Iterator[None]:
  """Creates a folder, and removes it if the body of the `with` fails."""
  new_folders = [x for x in (path, *path.parents) if not x.exists()]
  path.mkdir(parents=True, exist_ok=True)
  try:
    yield
  except BaseException:
    for folder in new_folders:
      with contextlib.suppress(OSError):
        folder.rmdir()
    raise
