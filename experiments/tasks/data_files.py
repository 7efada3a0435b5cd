"""Rows of a user's file, read as a stream: JSONL, CSV or Parquet.

A file is a path or a URL of fsspec; JSONL and CSV may be packed by gzip. Rows
come in the order of the file, one at a time, and a reader that stops early
reads no more than it needs, so that damage after the last row that it takes is
not seen.
"""

import csv
import hashlib
import io
import json
import pathlib
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

from cascades import files

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


class DataFile:
  """A file of rows."""

  def __init__(self, option: str, path: str):
    """Recognises the format by the name; opens nothing."""
    self._option, self._path = option, path
    self._is_url = '://' in path
    plain = urllib.parse.urlsplit(path).path if self._is_url else path
    self.name = pathlib.PurePath(plain).name
    self._is_packed = self.name.endswith('.gz')
    suffix = pathlib.PurePath(self.name.removesuffix('.gz')).suffix
    self._format = _FORMATS.get(suffix, '')
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
    subject = f'{self.name}, {place},' if place else self.name
    return ValueError(
      f'{self._option}: {files.printable(f"{subject} {fault}")}; {advice}.'
    )

  def rows(
    self, required: Collection[str], optional: Collection[str] = ()
  ) -> Iterator[Row]:
    """Yields the rows in the order of the file."""
    self._hash = hashlib.sha256()
    read = {'jsonl': self._read_jsonl, 'csv': self._read_csv}
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
        advice = 'give a file'
        path = pathlib.Path(self._path)
        files.check_regular(path, self._option, advice)
        return path.open('rb')
      import fsspec

      # Files of fsspec read lines without a limit.
      return io.BufferedReader(fsspec.open(self._path, 'rb').open())
    except ValueError as error:
      if not self._is_url:
        raise
      raise self._unreadable(error) from None
    # File systems of other packages raise errors of their own.
    except Exception as error:
      raise self._unreadable(error) from None

  def _unreadable(self, error: Exception, place: str = '') -> ValueError:
    """Returns the error of a file that cannot be read."""
    reason = getattr(error, 'strerror', None) or f'{error}'
    reason = ' '.join(files.without_secrets(reason).split()).rstrip('.')
    reason = reason or type(error).__name__
    fault = f'cannot be read ({reason})'
    return self.refusal(place, fault, 'give another file')

  def _read_lines(self, file: BinaryIO) -> Iterator[bytes | bytearray]:
    """Yields the lines of a file, and hashes them."""

    def refuse(number: int, reason: str) -> ValueError:
      fault, advice = f'cannot be read ({reason})', 'download the file again'
      return self.refusal(f'line {number}', fault, advice)

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
    number, header = 0, None
    texts = self._decode(raw)
    first = next(texts, '')
    delimiter = max(',;\t', key=first.count)
    csv.field_size_limit(files.MAX_LINE)

    def all_texts() -> Iterator[str]:
      yield first
      yield from texts

    reader = csv.reader(all_texts(), delimiter=delimiter, strict=True)
    while True:
      number = reader.line_num + 1
      try:
        cells = next(reader)
      except StopIteration:
        return
      except csv.Error as error:
        raise self.refusal(f'line {number}', f'is damaged ({error})') from None
      if not any(cells):
        continue
      if header is None:
        header = cells
        if len({*header}) < len(header):
          raise self.refusal(f'line {number}', 'names a column twice')
        continue
      if len(cells) != len(header):
        raise self.refusal(
          f'line {number}',
          f'has {len(cells)} cells and the header has {len(header)}',
        )
      yield f'line {number}', dict(zip(header, cells, strict=True))

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
      used = names & (required | optional) if required <= names else names
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
