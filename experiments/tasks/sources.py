"""Sources of published sets: files, or the Hugging Face hub.

A file is a table with the columns of the hub's, unless its `Source` reads
another form. Each row comes with its location, which errors name.
"""

import codecs
import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cascades import files

# The location of a row, in words, and its fields.
Row = tuple[str, Mapping[str, Any]]


class DamagedError(ValueError):
  """A fault of a set; the message continues a sentence with its location."""


@contextlib.contextmanager
def error_location(location: str) -> Iterator[None]:
  """Prepends a location to the messages of `DamagedError`."""
  try:
    yield
  except DamagedError as e:
    raise DamagedError(f'{location} {e}') from None


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a text file, packed as `.gz` or not."""

  def refuse(number: int, reason: str) -> DamagedError:
    return DamagedError(f'{path}, line {number}: {reason}')

  text_lines: list[str] = []
  try:
    for line in files.read_lines(path, refuse):
      text = line.removeprefix(codecs.BOM_UTF8) if not text_lines else line
      # Only these end a line, although Unicode has more line separators.
      text_lines.append(text.decode().removesuffix('\n').removesuffix('\r'))
  except OSError as e:
    raise DamagedError(f'{path} cannot be read ({e.strerror or e})') from None
  except UnicodeDecodeError:
    raise refuse(len(text_lines) + 1, 'it is not UTF-8 text') from None
  return text_lines


def read_table(path: pathlib.Path) -> Iterator[Row]:
  """Yields the rows of a table: `.csv`, `.parquet`, or JSON objects a line."""
  if path.suffix in ('.csv', '.parquet'):
    import pandas as pd

    try:
      files.check_regular(path, 'path', 'give a file')
      if path.suffix == '.csv':
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
      else:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as e:
      raise DamagedError(f'{path} cannot be read ({e})') from None
    for number, row in enumerate(frame.to_dict('records'), 1):
      yield f'{path}, row {number},', row
    return
  for number, line in enumerate(read_lines(path), 1):
    if line.strip():
      location = f'{path}, line {number},'
      try:
        yield location, files.parse_json(line)
      except ValueError as e:
        raise DamagedError(f'{location} {str(e).removeprefix("it ")}') from None


def get_field(row: Any, name: str, kind: type = str) -> Any:
  """Returns a field of a row; 'a.b' is the field b of the object a."""
  outer, dot, inner = name.partition('.')
  if dot:
    return get_field(get_field(row, outer, dict), inner, kind)
  if not isinstance(row, Mapping):
    raise DamagedError('is not an object with fields')
  if name not in row:
    raise DamagedError(f'has no field {name!r}')
  value = row[name]
  if kind is list and hasattr(value, 'tolist'):
    # Lists of a parquet file are arrays.
    value = value.tolist()
  if not isinstance(value, kind):
    words = {str: 'a text', list: 'a list', dict: 'an object', int: 'a number'}
    raise DamagedError(f'has a field {name!r} that is not {words[kind]}')
  return value


def get_text(row: Any, name: str) -> str:
  """Returns a text field without white space around it."""
  value = get_field(row, name).strip()
  if not value:
    raise DamagedError(f'has an empty {name.rpartition(".")[2]!r}')
  return value


def get_texts(row: Any, name: str) -> tuple[str, ...]:
  """Returns the texts of a list field, without empty ones and repeats."""
  values = get_field(row, name, list)
  if not all(isinstance(value, str) for value in values):
    raise DamagedError(f'has a field {name!r} that is not a list of texts')
  values = [value.strip() for value in values]
  return tuple(dict.fromkeys(value for value in values if value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """The file format and the hub name of a published set."""

  download: str = ''
  read: Callable[[pathlib.Path], Iterator[Row]] = read_table
  hub: str | None = None
  config: str | None = None
  splits: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {'train': 'train', 'test': 'test'}
  )
  revision: str | None = None
  files: Callable[[pathlib.Path], Sequence[pathlib.Path]] = lambda path: [path]

  def __post_init__(self):
    if not self.download:
      config = f', configuration {self.config}' if self.config else ''
      table = f'{self.splits["test"]} table of huggingface.co/datasets'
      object.__setattr__(self, 'download', f'the {table}/{self.hub}{config}')

  def rows(self, path: str | None, split: str) -> Iterator[Row]:
    """Yields the rows of a file, or of a split on the hub."""
    is_empty = True
    for row in self.read(pathlib.Path(path)) if path else self._hub_rows(split):
      is_empty = False
      yield row
    if is_empty:
      raise DamagedError(f'{path or self.hub} has no rows')

  def _hub_rows(self, split: str) -> Iterator[Row]:
    """Yields the rows of a split on the hub."""
    try:
      if not self.hub:
        raise LookupError('it is not on the Hugging Face hub')
      import datasets

      rows = datasets.load_dataset(
        self.hub, self.config, split=self.splits[split], revision=self.revision
      )
    except Exception as e:
      # Every failure of the hub has the same remedy.
      reason = ' '.join(str(e).split()).rstrip('.') or type(e).__name__
      raise ValueError(
        f'path: {self.hub or "the set"} cannot be loaded ({reason}); download'
        f' {self.download} and give it with --config.task.path=...'
      ) from e
    for number, row in enumerate(rows):
      yield f'{self.hub}, {split} row {number},', row

  def provenance(self, path: str | None) -> dict[str, Any]:
    """Returns the files and their SHA-256, or the name on the hub."""
    if not path:
      names = (self.hub, self.config, self.revision)
      return {'hub': ' '.join(name for name in names if name)}
    hashes = {}
    for file in self.files(pathlib.Path(path)):
      try:
        hashes[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
      except OSError as e:
        raise ValueError(
          f'path: {file} cannot be read ({e.strerror}); give {self.download}.'
        ) from None
    return {'files': hashes}
