"""Files that are whole or not there; a line of JSON each.

A file is written under another name and renamed when it is whole, so what is
there can be trusted; traces before their records.
"""

import gzip
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from cascades.atomic import write_bytes, write_text
from cascades.untrusted import bounded, schema
from experiments import tasks
from experiments.records import old_names
from experiments.records.record_schema import (
  Record,
  Trace,
  View,
  dumps,
  loads,
)


def claim(
  path: pathlib.Path, fields: Mapping[str, Any], what: str, bound: bool = True
) -> None:
  """Says what a workdir's files were made with, or goes on with the same.

  Args:
    path: Where that is said, in the workdir.
    fields: What JSON can hold, by name; tuples are lists to it.
    what: Made the files, in a word.
    bound: Whether there are such files; else what is said there is forgotten.

  Raises:
    ValueError: There are, and they were made with something else.
  """
  text = json.dumps(fields, indent=2) + '\n'
  if bound and path.exists():
    found = old_names.replace('settings', read_json(path))
    given = json.loads(text)
    names = sorted(
      name
      for name in set(found) | set(given)
      if found.get(name) != given.get(name)
    )
    if names:
      raise ValueError(
        f'workdir: {path.parent} holds a {what} with another'
        f' {", ".join(names)}; choose another --workdir, or delete it.'
      )
  write_text(path, text)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Fields of a file of a workdir.

  Raises:
    ValueError: It is damaged, or no JSON object.
  """
  return bounded.read_fields(path, 'workdir', 'delete it')


class _Start(schema.Schema):
  """What is read of a start of a sweep."""

  code: str | None = None


class _Provenance(schema.Schema):
  """What is read of a provenance.json."""

  starts: list[_Start]


def read_starts(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the starts of a sweep in its provenance; none if it was not kept.

  Raises:
    ValueError: The file is damaged.
  """
  path = workdir / 'provenance.json'
  if not path.is_file():
    return []
  fields = read_json(path)
  _Provenance.check(fields, f'workdir: {path}', 'delete it')
  return fields['starts']


def write(path: str | pathlib.Path, lines: Iterable[Any]) -> None:
  """Writes lines whole or not at all; packed, where the name ends in `.gz`."""
  path = pathlib.Path(path)
  content = ''.join(dumps(line) + '\n' for line in lines).encode()
  if path.suffix == '.gz':
    # The same lines are the same bytes, whenever they are written.
    content = gzip.compress(content, compresslevel=6, mtime=0)
  write_bytes(path, content)


def read(path: str | pathlib.Path, kind: type = Record) -> list:
  """Reads a file that `write` wrote.

  Args:
    path: Where the file lies.
    kind: What its lines are.

  Raises:
    ValueError: It is damaged; names file and line.
  """
  path = pathlib.Path(path)

  def refuse(number: int, why: object) -> ValueError:
    return ValueError(f'{path}:{number}: damaged record ({why})')

  found = []
  for number, line in enumerate(bounded.read_lines(path, refuse), 1):
    # A line that was cut off might still be read.
    if not line.endswith(b'\n'):
      raise refuse(number, 'it has no end')
    try:
      found.append(loads(line, kind))
    except ValueError as e:
      raise refuse(number, e) from None
  return found


def read_all(workdir: str | pathlib.Path) -> list[Record]:
  """All records of a workdir, files in name order.

  Raises:
    ValueError: There are none, or one is damaged.
  """
  return [r for lines in read_points(workdir).values() for r in lines]


def read_points(workdir: str | pathlib.Path) -> dict[str, list[Record]]:
  """The records of each point of a workdir, by its name, in that order.

  Raises:
    ValueError: There are none, or one is damaged.
  """
  paths = sorted(pathlib.Path(workdir).glob('records/*.jsonl'))
  found = {path.stem: read(path) for path in paths}
  if not any(found.values()):
    raise ValueError(
      f'workdir: no records in {workdir}/records; run experiments.sweep first.'
    )
  return found


def read_traces(workdir: str | pathlib.Path, point: str) -> list[Trace]:
  """A point's traces, in the order of its records.

  Raises:
    ValueError: They are damaged, or not there.
  """
  path = pathlib.Path(workdir) / 'traces' / f'{point}.jsonl.gz'
  if not path.is_file():
    raise ValueError(f'workdir: there is no {path}; run experiments.sweep.')
  return read(path, Trace)


def read_examples(
  workdir: str | pathlib.Path,
) -> dict[str, dict[str, tasks.Example]]:
  """What was asked, by task and id."""
  paths = sorted(pathlib.Path(workdir).glob('examples/*.jsonl'))
  return {
    path.stem: {example.id: example for example in read(path, tasks.Example)}
    for path in paths
  }


def read_race(workdir: str | pathlib.Path) -> list[Record]:
  """Arms on the clock, a record of each prompt; none if none were timed."""
  path = pathlib.Path(workdir) / 'race.jsonl'
  return read(path) if path.is_file() else []


def read_views(
  workdir: str | pathlib.Path, damaged: list[str] | None = None
) -> dict[tuple, View]:
  """What is there of views, by their key; a damaged file is as good as none.

  Args:
    workdir: Where they lie.
    damaged: Gets a sentence for each file that is damaged.
  """
  found = {}
  for path in sorted(pathlib.Path(workdir).glob('views/*.jsonl')):
    try:
      found |= {view.key: view for view in read(path, View)}
    except ValueError as error:
      if damaged is not None:
        damaged.append(f'{error}.')
  return found
