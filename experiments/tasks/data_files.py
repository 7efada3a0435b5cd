"""Rows of files, read as a stream, and of published sets; templates.

Formats are JSONL, CSV, Parquet and lines of text.

A file is a path or a URL of fsspec; all but Parquet may be packed by gzip. Rows
come in the order of the file, one at a time, and a reader that stops early
reads no more than it needs, so that damage after the last row that it takes is
not seen.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import json
import math
import pathlib
import re
import string
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

from cascades import arguments, files

# Row of a file: its place in words, and its fields.
Row = tuple[str, Mapping[str, Any]]

MEND = 'fix the row or remove it'
_FORMATS = {
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.csv': 'csv',
  '.parquet': 'parquet',
}
# Rows of a Parquet file that are converted at a time.
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
# Ends of the names of two files of sentences, a translation.
_LANGUAGES = 'en', 'de'


class RowError(Exception):
  """A fault of a row, and the advice of the error."""

  def __init__(self, fault: str, advice: str = MEND):
    super().__init__(fault, advice)


def refusal(
  option: str, name: str, place: str, fault: str, advice: str = MEND
) -> ValueError:
  """Returns the error of a row of a table, or of the table."""
  subject = f'{name}, {place},' if place else name
  return ValueError(
    f'{option}: {files.printable(f"{subject} {fault}")}; {advice}.'
  )


class DataFile:
  """A file of rows; `lines` are the suffixes of texts, or None for all others.

  A row of a text is a line, in a column with the name of the suffix.
  """

  def __init__(
    self, option: str, path: str, lines: Collection[str] | None = ()
  ):
    """Recognises the format by the name; opens nothing."""
    self._option, self._path = option, path
    self._is_url = '://' in path
    plain = urllib.parse.urlsplit(path).path if self._is_url else path
    self.name = pathlib.PurePath(plain).name
    self._is_packed = self.name.endswith('.gz')
    suffix = pathlib.PurePath(self.name.removesuffix('.gz')).suffix
    self._column = suffix.removeprefix('.')
    self.is_text = suffix not in _FORMATS and (
      lines is None or self._column in lines
    )
    self._format = _FORMATS.get(suffix, 'text' if self.is_text else '')
    if not self._format or (self._format == 'parquet' and self._is_packed):
      raise self.refusal(
        '',
        'must end in .jsonl, .csv, .jsonl.gz, .csv.gz or .parquet',
        'rename it if it has one of these formats',
      )
    self._hash = hashlib.sha256()

  @property
  def sha256(self) -> str:
    """Hash of the rows that `rows` has read.

    It is that of their bytes, so that a JSONL or CSV file that was read to its
    end has the hash of the (unpacked) file; of Parquet, that of the rows as
    lines of JSON.
    """
    return self._hash.hexdigest()

  def refusal(self, place: str, fault: str, advice: str = MEND) -> ValueError:
    """Returns the error of a row, or of the file."""
    return refusal(self._option, self.name, place, fault, advice)

  @contextlib.contextmanager
  def errors_at(self, place: str) -> Iterator[None]:
    """Names the place of a row in its errors."""
    try:
      yield
    except RowError as error:
      raise self.refusal(place, *error.args) from None

  def rows(
    self, required: Collection[str] = (), optional: Collection[str] = ()
  ) -> Iterator[Row]:
    """Yields the rows in the order of the file.

    Names of columns, if any are given, are those that are read of Parquet.
    """
    self._hash = hashlib.sha256()
    read = {
      'jsonl': self._read_jsonl,
      'csv': self._read_csv,
      'text': self._read_text,
    }
    with self._open() as file:
      try:
        if self._format == 'parquet':
          yield from self._read_parquet(file, {*required}, {*optional})
        else:
          yield from read[self._format](self._read_lines(file))
      except (OSError, RuntimeError) as error:
        raise self._unreadable(error) from None

  def _open(self) -> BinaryIO:
    """Opens the file for reading bytes."""
    try:
      if not self._is_url:
        path = pathlib.Path(self._path)
        files.check_regular(path, self._option, 'give a file')
        return path.open('rb')
      import fsspec

      # Files of fsspec read lines without a limit.
      return io.BufferedReader(fsspec.open(self._path, 'rb').open())
    # File systems of other packages raise errors of their own.
    except Exception as error:
      if isinstance(error, ValueError) and not self._is_url:
        raise
      raise self._unreadable(error) from None

  def _unreadable(self, error: Exception, place: str = '') -> ValueError:
    """Returns the error of a file that cannot be read."""
    reason = getattr(error, 'strerror', None) or f'{error}'
    reason = ' '.join(files.without_secrets(reason).split()).rstrip('.')
    fault = f'cannot be read ({reason or type(error).__name__})'
    return self.refusal(place, fault, 'give another file')

  def _read_lines(self, file: BinaryIO) -> Iterator[bytes | bytearray]:
    """Yields the lines of a file, and hashes them."""

    def refuse(number: int, reason: str) -> ValueError:
      fault, advice = f'cannot be read ({reason})', 'download the file again'
      return self.refusal(f'line {number}', fault, advice)

    for line in files.split_lines(file, refuse, is_compressed=self._is_packed):
      self._hash.update(line)
      yield line

  def _read_text(self, raw: Iterator[bytes | bytearray]) -> Iterator[Row]:
    """Yields the lines of a text, each as a field with the suffix's name."""
    for number, line in enumerate(self._decode(raw), 1):
      # Only these end a line, although Unicode has more line separators.
      text = line.removesuffix('\n').removesuffix('\r')
      yield f'line {number}', {self._column: text}

  def _read_jsonl(self, raw: Iterator[bytes | bytearray]) -> Iterator[Row]:
    """Yields the objects of a file with one in each line."""
    for number, line in enumerate(raw, 1):
      if not line.strip():
        continue
      try:
        row = files.parse_json(line)
      except ValueError as error:
        reason = str(error).removeprefix('it ')
        raise self.refusal(f'line {number}', reason) from None
      if not isinstance(row, dict):
        raise self.refusal(f'line {number}', 'is not a JSON object')
      yield f'line {number}', row

  def _read_csv(self, raw: Iterator[bytes | bytearray]) -> Iterator[Row]:
    """Yields the rows of a table with a header; all fields are texts."""
    header = None
    texts = self._decode(raw)
    first = next(texts, '')
    delimiter = max(',;\t', key=first.count)
    csv.field_size_limit(files.MAX_LINE)
    lines = itertools.chain([first], texts)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
      place = f'line {reader.line_num + 1}'
      try:
        cells = next(reader)
      except StopIteration:
        return
      except csv.Error as error:
        raise self.refusal(place, f'is damaged ({error})') from None
      if not any(cells):
        continue
      if header is None:
        header = cells
        if len({*header}) < len(header):
          raise self.refusal(place, 'names a column twice')
        continue
      if len(cells) != len(header):
        raise self.refusal(
          place, f'has {len(cells)} cells and the header has {len(header)}'
        )
      yield place, dict(zip(header, cells, strict=True))

  def _decode(self, raw: Iterator[bytes | bytearray]) -> Iterator[str]:
    """Yields lines as texts."""
    for number, line in enumerate(raw, 1):
      try:
        yield line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError:
        raise self.refusal(f'line {number}', 'is not UTF-8 text') from None

  def _read_parquet(
    self, file: BinaryIO, required: set[str], optional: set[str]
  ) -> Iterator[Row]:
    """Yields the rows of a Parquet file, a few at a time."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
      # Without a buffer of whole row groups, pages are read as they are used.
      table = parquet.ParquetFile(
        file, buffer_size=_BUFFER_BYTES, pre_buffer=False
      )
      columns = table.schema_arrow.names
      names = {*columns}
      if len(names) < len(columns):
        raise pyarrow.ArrowInvalid('it names a column twice')
      # A missing column is an error that lists all columns.
      is_chosen = required and required <= names
      used = names & (required | optional) if is_chosen else names
      batches = table.iter_batches(
        _BATCH_ROWS, columns=sorted(used), use_threads=False
      )
      for batch in batches:
        for row in batch.to_pylist():
          number += 1
          text = json.dumps(row, sort_keys=True, default=str)
          self._hash.update(f'{text}\n'.encode())
          yield f'row {number}', row
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
      place = f'after row {number}' if number else ''
      raise self._unreadable(error, place) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A published set: its name on the hub, and how to get its files.

  Attributes:
    hub: Name on the Hugging Face hub; None for a set that it lacks.
    config: Configuration on the hub.
    splits: Splits of the hub by those of the task.
    revision: Revision on the hub.
    download: The file to download instead; '' for the table of the hub.
    pairs: True for two files of sentences, `NAME.en` and `NAME.de`, which may
      be packed, `NAME.en.gz`; else the file is a table.
  """

  hub: str | None = None
  config: str | None = None
  splits: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {'train': 'train', 'test': 'test'}
  )
  revision: str | None = None
  download: str = ''
  pairs: bool = False

  @property
  def advice(self) -> str:
    """Advice about a set that is absent or damaged."""
    config = f', configuration {self.config}' if self.config else ''
    table = f'the {self.splits["test"]} table of huggingface.co/datasets'
    return f'give {self.download or f"{table}/{self.hub}{config}"}'

  def rows(self, path: str | None, split: str) -> Iterator[Row]:
    """Yields the rows of a file, or of a split on the hub."""
    if path is None:
      return self._hub_rows(split)
    names = _LANGUAGES if self.pairs else ()
    sides = [DataFile('path', str(x), names) for x in self.files(path)]
    return self._pair_rows(*sides) if self.pairs else sides[0].rows()

  def _pair_rows(self, first: DataFile, second: DataFile) -> Iterator[Row]:
    """Yields pairs of sentences."""
    for pair in itertools.zip_longest(first.rows(), second.rows()):
      if None in pair:
        fault = f'and {second.name} have different numbers of lines'
        raise first.refusal('', fault, self.advice)
      (place, row), (_, more) = pair
      yield place, {**row, **more}

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
        f' and {self.advice} with --config.task.path=...'
      ) from e
    for number, row in enumerate(rows):
      yield f'{split} row {number}', row

  def files(self, path: str) -> list[pathlib.Path]:
    """Lists the files of a path; of pairs, packed ones if none are plain."""
    if not self.pairs:
      return [pathlib.Path(path)]
    stem = re.sub(r'(\.(en|de))?(\.gz)?$', '', path)
    plain = [pathlib.Path(f'{stem}.{end}') for end in _LANGUAGES]
    packed = [pathlib.Path(f'{file}.gz') for file in plain]
    return [
      b if b.exists() and not a.exists() else a
      for a, b in zip(plain, packed, strict=True)
    ]

  def provenance(self, path: str | None) -> dict[str, Any]:
    """Returns the files and their SHA-256, or the name on the hub."""
    if not path:
      names = (self.hub, self.config, self.revision)
      return {'hub': ' '.join(name for name in names if name)}
    files = self.files(path)
    return {
      'files': {
        x.name: hashlib.sha256(x.read_bytes()).hexdigest() for x in files
      }
    }


class Template:
  """A field of rows, or a text with the names of fields in braces.

  Attributes:
    fields: Names of the fields; 'a.b' is the field b of the object a.
  """

  def __init__(self, option: str, text: str):
    """Parses the text."""
    is_name = '{' not in text and '}' not in text
    try:
      parts = (
        [('', text, '', None)] if is_name else string.Formatter().parse(text)
      )
      self._parts = list(parts)
    except ValueError:
      self._parts = []
    self.fields = [name for _, name, *_ in self._parts if name is not None]
    if not self.fields or any(
      not name or {*name} & {*'[]!'} or spec or conversion
      for _, name, spec, conversion in self._parts
      if name is not None
    ):
      raise ValueError(
        f'{option}: {arguments.quote(text)} must be the name of a field, or a'
        ' text with names alone in braces, such as {question}; write {{ and }}'
        ' for braces of the text.'
      )

  def fill(self, row: Mapping[str, Any], strip: bool = False) -> str:
    """Returns the text of a row; with `strip`, of fields that are not empty."""
    values = {name: get_text(row, name) for name in self.fields}
    if strip:
      values = {name: text.strip() for name, text in values.items()}
    check = all if strip else any
    if not check(text.strip() for text in values.values()):
      empty = [name for name, text in values.items() if not text.strip()]
      raise RowError(f'has an empty {" and ".join(map(repr, empty))}')
    return ''.join(
      text + ('' if name is None else values[name])
      for text, name, *_ in self._parts
    )


def get_field(row: Mapping[str, Any], name: str) -> Any:
  """Returns a field of a row; 'a.b' is the field b of the object a."""
  value: Any = row
  for part in [name] if name in row else name.split('.'):
    if not isinstance(value, Mapping) or value.get(part) is None:
      names = ', '.join(map(arguments.quote, row))
      has = '' if name in row else f', only {names}'
      advice = 'fix the row, or name the field that the rows have'
      raise RowError(f'has no field {arguments.quote(name)}{has}', advice)
    value = value[part]
  return value


def get_texts(row: Mapping[str, Any], name: str) -> list[str]:
  """Returns the texts of a list field, without empty ones and repeats."""
  values = get_field(row, name)
  texts = [as_text(x) for x in values] if isinstance(values, list) else [None]
  if None in texts:
    raise RowError(f'has a field {name!r} that is not a list of texts')
  return [*dict.fromkeys(x for x in texts if x and x.strip())]


def get_text(row: Mapping[str, Any], name: str) -> str:
  """Returns a field as a text."""
  value = get_field(row, name)
  text = as_text(value)
  if text is None:
    kind = 'a finite number' if isinstance(value, float) else 'a text'
    raise RowError(f'has a field {arguments.quote(name)} that is not {kind}')
  return text


def as_text(value: Any) -> str | None:
  """Returns a text or a finite number as text; None for other values."""
  if isinstance(value, bool | int | float):
    # NaN is how tables say that a value is missing.
    return json.dumps(value) if math.isfinite(value) else None
  return value if isinstance(value, str) else None
