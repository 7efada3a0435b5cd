"""Where a published set comes from: a file, or the Hugging Face hub.

A file is what the set's authors give out, and its rows are brought into the
shape of the hub's, so that a task has one way from a row to a problem. A row
comes with its place, which is what an error names.
"""

import codecs
import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cascades.untrusted import bounded

# Where a row lies, in words, and its fields.
Row = tuple[str, Mapping[str, Any]]


class DamagedError(ValueError):
  """What is wrong with a set, in words that follow where it is wrong."""


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
  """Puts a place before what is found to be damaged there."""
  try:
    yield
  except DamagedError as e:
    raise DamagedError(f'{place} {e}') from None


def read_lines(path: pathlib.Path) -> list[str]:
  """Lines of a text file, without their ends; of one in `.gz` too.

  Raises:
    DamagedError: It cannot be read, or is no text.
  """

  def refuse(number: int, why: str) -> DamagedError:
    return DamagedError(f'{path}, line {number}: {why}')

  found: list[str] = []
  try:
    for line in bounded.read_lines(path, refuse):
      text = line.removeprefix(codecs.BOM_UTF8) if not found else line
      # Nothing else ends a line, though Unicode knows more that might.
      found.append(text.decode().removesuffix('\n').removesuffix('\r'))
  except OSError as e:
    raise DamagedError(f'{path} cannot be read ({e.strerror or e})') from None
  except UnicodeDecodeError:
    raise refuse(len(found) + 1, 'it is no UTF-8 text') from None
  return found


def _parse(text: str, place: str, bounds: bounded.Bounds = bounded.LINE) -> Any:
  try:
    return bounded.parse_json(text, bounds)
  except ValueError as e:
    raise DamagedError(f'{place} {str(e).removeprefix("it ")}') from None


def read_json(path: pathlib.Path) -> Any:
  """The value that a JSON file holds.

  Raises:
    DamagedError: It cannot be read, or is not JSON.
  """
  text = '\n'.join(read_lines(path))
  return _parse(text, str(path), bounded.TABLE)


def read_list(path: pathlib.Path) -> Iterator[Row]:
  """Rows of a JSON file that is a list.

  Raises:
    DamagedError: It cannot be read, or is no list.
  """
  rows = read_json(path)
  if not isinstance(rows, list):
    raise DamagedError(f'{path} is not a JSON list')
  for number, row in enumerate(rows):
    yield f'{path}, [{number}],', row


def read_table(path: pathlib.Path) -> Iterator[Row]:
  """Rows of a table: `.csv`, `.parquet`, or else a JSON object a line.

  Raises:
    DamagedError: It cannot be read; names file and, where it has some, line.
  """
  if path.suffix in ('.csv', '.parquet'):
    import pandas as pd

    try:
      bounded.check_regular(path, 'path', 'give a file')
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
      place = f'{path}, line {number},'
      yield place, _parse(line, place)


def take(row: Any, name: str, kind: type = str) -> Any:
  """A field of a row.

  Raises:
    DamagedError: It is missing, or of another kind.
  """
  if not isinstance(row, Mapping):
    raise DamagedError('is not an object with fields')
  if name not in row:
    raise DamagedError(f'has no {name!r}')
  value = row[name]
  if kind is list and hasattr(value, 'tolist'):
    # Parquet's lists come as arrays.
    value = value.tolist()
  if not isinstance(value, kind):
    words = {
      str: 'text',
      list: 'a list',
      dict: 'an object',
      bool: 'a truth value',
      int: 'a number',
    }
    raise DamagedError(f'has a {name!r} that is not {words[kind]}')
  return value


def rows_in(place: str, row: Any, name: str) -> Iterator[Row]:
  """Rows that a field of a row lists.

  Args:
    place: Of the row.
    row: It.
    name: Of the field.

  Raises:
    DamagedError: It is missing, or no list.
  """
  with at(place):
    values = take(row, name, list)
  start = f'{place[:-1]}.' if place.endswith(',') else f'{place}, '
  for number, value in enumerate(values):
    yield f'{start}{name}[{number}],', value


def take_text(row: Any, name: str) -> str:
  """A field that must say something, without white space around it.

  Raises:
    DamagedError: It is missing, no text, or empty.
  """
  value = take(row, name).strip()
  if not value:
    raise DamagedError(f'has an empty {name!r}')
  return value


def take_texts(row: Any, name: str) -> tuple[str, ...]:
  """A field that lists texts, without the empty ones and repeats.

  Raises:
    DamagedError: It is missing, no list, or holds something else.
  """
  values = take(row, name, list)
  if not all(isinstance(value, str) for value in values):
    raise DamagedError(f'has a {name!r} that is not a list of texts')
  values = [value.strip() for value in values]
  return tuple(dict.fromkeys(value for value in values if value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """Where a published set comes from.

  Attributes:
    get: What to download, in words: 'test.jsonl of github.com/...'.
    read: Yields the rows of a file, in the shape of the hub's.
    hub: Name on the Hugging Face hub; None where it is not there.
    config: Which of the hub's variants.
    splits: The hub's split for each of ours. Where the answers of a test split
      are secret, 'test' is the split on which results are published.
    of_split: `of_split(row, split)` says whether a row is one of the split's,
      where a file holds several.
    revision: Which version of the hub's files.
    files: The files that a path stands for.
  """

  get: str
  read: Callable[[pathlib.Path], Iterator[Row]] = read_table
  hub: str | None = None
  config: str | None = None
  splits: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {'train': 'train', 'test': 'test'}
  )
  of_split: Callable[[Mapping[str, Any], str], bool] | None = None
  revision: str | None = None
  files: Callable[[pathlib.Path], Sequence[pathlib.Path]] = lambda path: [path]

  def rows(self, path: str | None, split: str) -> Iterator[Row]:
    """The rows of a file, or of a split on the hub.

    Raises:
      DamagedError: There is no such file, it is damaged, or nothing is in it.
      ValueError: There is no hub to be had.
    """
    empty = True
    for row in self.read(pathlib.Path(path)) if path else self._of_hub(split):
      empty = False
      yield row
    if empty:
      raise DamagedError(f'{path or self.hub} has no rows')

  def _of_hub(self, split: str) -> Iterator[Row]:
    try:
      if not self.hub:
        raise LookupError('it is not on the Hugging Face hub')
      import datasets

      rows = datasets.load_dataset(
        self.hub,
        self.config,
        split=self.splits[split],
        revision=self.revision,
      )
    except Exception as e:
      # Whatever went wrong on the way there, the way out is the same.
      reason = ' '.join(str(e).split()).rstrip('.') or type(e).__name__
      raise ValueError(
        f'path: {self.hub or "the set"} cannot be had ({reason}); download'
        f' {self.get} and name it with --config.task.path=...'
      ) from e
    for number, row in enumerate(rows):
      yield f'{self.hub}, {split} row {number},', row

  def provenance(self, path: str | None) -> dict[str, Any]:
    """What says which rows were read: files and their SHA-256, or the hub's.

    Raises:
      ValueError: A file cannot be read.
    """
    if not path:
      names = (self.hub, self.config, self.revision)
      return {'hub': ' '.join(name for name in names if name)}
    found = {}
    for file in self.files(pathlib.Path(path)):
      try:
        found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
      except OSError as e:
        raise ValueError(
          f'path: {file} cannot be read ({e.strerror}); give {self.get}.'
        ) from None
    return {'files': found}
