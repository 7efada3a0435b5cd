"""Reads and writes the files of a workdir, with one JSON object a line.

A file is written under another name and renamed when it is complete, so that
no file is partial. Traces are written before their records.
"""

import gzip
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cascades import files
from cascades.files import write_bytes, write_text
from experiments import tasks
from experiments.records.record_schema import Record, Trace, dumps, loads


def claim(
  path: pathlib.Path,
  fields: Mapping[str, Any],
  kind: str,
  bound: bool = True,
  replaceable: Sequence[str] = (),
  write: bool = True,
) -> None:
  """Writes the settings of a workdir, or checks that they have not changed."""
  text = json.dumps(fields, indent=2) + '\n'
  if bound and path.exists():
    previous = read_json(path)
    current = json.loads(text)
    names = sorted(
      name
      for name in (set(previous) | set(current)) - {*replaceable}
      if previous.get(name) != current.get(name)
    )
    if names:
      raise ValueError(
        f'workdir: {path.parent} holds a {kind} with another'
        f' {", ".join(names)}; choose another --workdir, or delete it.'
      )
  if write or not bound:
    write_text(path, text)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object from a file of a workdir."""
  return files.read_fields(path, 'workdir', 'delete it')


class _Start(files.Schema):
  """The fields of a start of a sweep that are read."""

  code: str | None = None
  commit: str | None = None


class _Provenance(files.Schema):
  """The fields of a provenance.json that are read."""

  starts: list[_Start]


def read_starts(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the starts of a sweep; returns none if the file is missing."""
  path = workdir / 'provenance.json'
  if not path.is_file():
    return []
  fields = read_json(path)
  _Provenance.check(fields, f'workdir: {path}', 'delete it')
  return fields['starts']


def write(path: str | pathlib.Path, values: Iterable[Any]) -> None:
  """Writes lines as a whole; compresses them if the name ends in `.gz`."""
  path = pathlib.Path(path)
  content = ''.join(dumps(line) + '\n' for line in values).encode()
  if path.suffix == '.gz':
    # Without a time, so that equal lines are equal bytes.
    content = gzip.compress(content, compresslevel=6, mtime=0)
  write_bytes(path, content)


def read(path: str | pathlib.Path, kind: type = Record) -> list:
  """Reads a file that `write` wrote."""
  path = pathlib.Path(path)

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(f'{path}:{number}: damaged record ({reason})')

  values = []
  for number, line in enumerate(files.read_lines(path, refuse), 1):
    # A line that was cut off may be valid JSON.
    if not line.endswith(b'\n'):
      raise refuse(number, 'it has no line break at its end')
    try:
      values.append(loads(line, kind))
    except ValueError as e:
      raise refuse(number, e) from None
  return values


def read_all(workdir: str | pathlib.Path) -> list[Record]:
  """Reads all records of a workdir, in the order of the names of files."""
  return [r for point in read_points(workdir).values() for r in point]


def read_points(workdir: str | pathlib.Path) -> dict[str, list[Record]]:
  """Reads the records of each point of a workdir, sorted by its name."""
  paths = sorted(pathlib.Path(workdir).glob('records/*.jsonl'))
  points = {path.stem: read(path) for path in paths}
  if not any(points.values()):
    raise ValueError(
      f'workdir: {workdir}/records has no records; run experiments.sweep first.'
    )
  return points


def read_traces(workdir: str | pathlib.Path, point: str) -> list[Trace]:
  """Reads the traces of a point, in the order of its records."""
  path = pathlib.Path(workdir) / 'traces' / f'{point}.jsonl.gz'
  if not path.is_file():
    raise ValueError(f'workdir: {path} is missing; run experiments.sweep.')
  return read(path, Trace)


def read_examples(
  workdir: str | pathlib.Path,
) -> dict[str, dict[str, tasks.Example]]:
  """Reads the examples of a workdir, by task and id."""
  paths = sorted(pathlib.Path(workdir).glob('examples/*.jsonl'))
  return {
    path.stem: {example.id: example for example in read(path, tasks.Example)}
    for path in paths
  }


def read_race(workdir: str | pathlib.Path) -> list[Record]:
  """Reads the records of a race; returns none if there was no race."""
  path = pathlib.Path(workdir) / 'race.jsonl'
  return read(path) if path.is_file() else []
