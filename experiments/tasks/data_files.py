"""Rows of files, read as a stream; fields and templates of rows.

Formats are JSONL, CSV and Parquet. A file is a path or a URL of fsspec; all but
Parquet may be packed by gzip. Rows come in the order of the
file, one at a time, and a reader that stops early reads no more than it needs,
so that damage after the last row that it takes is not seen.
"""

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import json
import math
import pathlib
import string
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from cascades import arguments, files

# Row of a file: its place in words, and its fields.
Row = tuple[str, Mapping[str, Any]]

MEND = 'fix the row or remove it'
# Rows of a Parquet file that are converted at a time.
_BATCH_ROWS = 64
_BUFFER_BYTES = 2**20


class RowError(Exception):
  """A fault of a row, and advice; a `remedy` comes before that of a set."""

  def __init__(self, fault: str, advice: str = MEND, remedy: str = ''):
    super().__init__(fault, advice, remedy)


class DataFile:
  """A file of rows.

  Errors name the option, the file and the row; `advice` is that of all errors.
  """

  def __init__(self, option: str, path: str, advice: str = ''):
    """Recognises the format by the name; opens nothing."""
    self._option, self._path, self._advice = option, path, advice
    self._is_url = '://' in path
    plain = urllib.parse.urlsplit(path).path if self._is_url else path
    self.name = pathlib.PurePath(plain).name
    self._is_packed = self.name.endswith('.gz')
    self._format = pathlib.PurePath(self.name.removesuffix('.gz')).suffix
    formats = '.jsonl', '.csv', '.parquet'
    if self._format not in formats or self.name.endswith('.parquet.gz'):
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

  def refusal(
    self, place: str, fault: str, advice: str = MEND, remedy: str = ''
  ) -> ValueError:
    """Returns the error of a row, or of the file."""
    subject = f'{self.name}, {place},' if place else self.name
    fault = files.printable(f'{subject} {fault}')
    advice = remedy or self._advice or advice
    return ValueError(f'{self._option}: {fault}; {advice}.')

  @contextlib.contextmanager
  def errors_at(self, place: str) -> Iterator[None]:
    """Names the place of a row in its errors."""
    try:
      yield
    except RowError as error:
      raise self.refusal(place, *error.args) from None

  def rows(self) -> Iterator[Row]:
    """Yields the rows in the order of the file."""
    self._hash = hashlib.sha256()
    with self._open() as file:
      try:
        if self._format == '.parquet':
          yield from self._read_parquet(file)
        else:
          is_csv, lines = self._format == '.csv', self._read_lines(file)
          yield from (self._read_csv if is_csv else self._read_jsonl)(lines)
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
      fault = f'cannot be read ({reason})'
      return self.refusal(f'line {number}', fault, 'download the file again')

    for line in files.split_lines(file, refuse, is_compressed=self._is_packed):
      self._hash.update(line)
      yield line

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
    texts = self._decode(raw)
    blank, first = next(
      (x for x in enumerate(texts, 1) if x[1].strip()), (1, '')
    )
    delimiter = max(',;\t', key=first.count)
    csv.field_size_limit(files.MAX_LINE)
    lines = itertools.chain([first], texts)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    place = ''
    try:
      while True:
        place = f'line {blank + reader.line_num}'
        if (cells := next(reader, None)) is None:
          return
        if not any(cells):
          continue
        if header and len(cells) != len(header):
          raise self.refusal(place, f'must have {len(header)} cells')
        if header:
          yield place, dict(zip(header, cells, strict=True))
        elif len({*cells}) < len(cells):
          raise self.refusal(place, 'names a column twice')
        header = header or cells
    except csv.Error as error:
      raise self.refusal(place, f'is damaged ({error})') from None

  def _decode(self, raw: Iterator[bytes | bytearray]) -> Iterator[str]:
    """Yields lines as texts."""
    for number, line in enumerate(raw, 1):
      try:
        yield line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError:
        raise self.refusal(f'line {number}', 'is not UTF-8 text') from None

  def _read_parquet(self, file: BinaryIO) -> Iterator[Row]:
    """Yields the rows of a Parquet file, a few at a time."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
      # Without a buffer of whole row groups, pages are read as they are used.
      table = parquet.ParquetFile(
        file, buffer_size=_BUFFER_BYTES, pre_buffer=False
      )
      names = table.schema_arrow.names
      if len({*names}) < len(names):
        raise pyarrow.ArrowInvalid('it names a column twice')
      for batch in table.iter_batches(_BATCH_ROWS, use_threads=False):
        for row in batch.to_pylist():
          number += 1
          text = json.dumps(row, sort_keys=True, default=str)
          self._hash.update(f'{text}\n'.encode())
          yield f'row {number}', row
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
      place = f'after row {number}' if number else ''
      raise self._unreadable(error, place) from None


class Template:
  """A field of rows, or a text with the names of fields in braces.

  Attributes:
    fields: Names of the fields; 'a.b' is the field b of the object a.
    field: The field, if the text is its name alone.
  """

  def __init__(self, option: str, text: str):
    """Parses the text."""
    self.field = None if {*text} & {*'{}'} else text
    try:
      parsed = list(string.Formatter().parse(text))
    except ValueError:
      parsed = []
    self._parts = [('', text, '', None)] if self.field else parsed
    names = [x for x in self._parts if x[1] is not None]
    self.fields = [name for _, name, *_ in names]
    if not names or any(
      not name or {*name} & {*'[]!'} or spec or conversion
      for _, name, spec, conversion in names
    ):
      raise ValueError(
        f'{option}: {arguments.quote(text)} must be the name of a field, or a'
        ' text with names alone in braces, such as {question}; write {{ and }}'
        ' for braces of the text.'
      )

  def fill(self, row: Mapping[str, Any], strip: bool = False) -> str:
    """Returns the text of a row, with or without white space around fields."""
    values = {name: get_text(row, name) for name in self.fields}
    empty = [name for name, text in values.items() if not text.strip()]
    # A set that others published has no question with an empty field.
    if empty and (strip or len(empty) == len(values)):
      raise RowError(f'has an empty {" and ".join(map(repr, empty))}')
    if strip:
      values = {name: text.strip() for name, text in values.items()}
    return ''.join(
      text + ('' if name is None else values[name])
      for text, name, *_ in self._parts
    )


@functools.cache
def template(text: str, option: str = 'question') -> Template:
  """Parses a template once."""
  return Template(option, text)


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
