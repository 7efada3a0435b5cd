"""Compares the answers of two workdirs of one sweep: old code against new.

Command: python .ci/compare_workdirs.py OLD NEW [FIELD ...]
Shows: the rows compared, and every difference; exit code 1 if there is any but
at most three tokens that differ by less than 1e-5 in log-probability. FIELDs
are those of records that left. Times, names of points, hashes and provenance
are not compared, and no rows of `sequential`.
It reads files alone and imports nothing of the project, since it must outlast
what it compares; it leaves when the project has been halved.
"""

import collections
import gzip
import json
import math
import pathlib
import sys

_SETTING = 'task method gamma lenience verification gate bonus_from drafts'
_TIMES = {'wall_s'}
_MOST, _GAP = 3, 1e-5


def _rows(path):
  opened = gzip.open if path.suffix == '.gz' else open
  with opened(path, 'rt', encoding='utf-8') as file:
    return [json.loads(line) for line in file]


def _read(workdir):
  """Returns rows of records with their traces, and views, by setting and id."""
  rows, views, settings = {}, {}, {}
  for path in sorted(workdir.glob('records/*.jsonl')):
    traces = workdir / 'traces' / f'{path.name}.gz'
    traced = _rows(traces) if traces.exists() else None
    for i, record in enumerate(_rows(path)):
      setting = tuple(str(record.get(x)) for x in _SETTING.split())
      if record['verification'] == 'sequential':
        continue
      settings[path.stem] = setting
      trace = traced[i] if traced else {}
      assert trace.get('id', record['id']) == record['id'], path
      rows[*setting, record['id']] = record | trace
  for path in sorted(workdir.glob('views/*.jsonl')):
    for view in _rows(path):
      if setting := settings.get(view.pop('point')):
        # A point may have several leniences.
        setting = list(setting)
        setting[_SETTING.split().index('lenience')] = str(view.pop('lenience'))
        views[*setting, view['id']] = view
  return rows, views


def _close(a, b):
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(map(_close, a, b))
  if isinstance(a, float) and isinstance(b, float):
    return a == b or abs(a - b) < _GAP or (math.isnan(a) and math.isnan(b))
  return a == b


def _differences(old, new, left):
  for field in sorted(old.keys() | new.keys()):
    if field in _TIMES | left:
      continue
    if field not in new or field not in old:
      yield f'{field}: only in one of them'
    elif not _close(old[field], new[field]):
      yield f'{field}: {str(old[field])[:60]} | {str(new[field])[:60]}'


def main(old, new, left):
  (rows, views), (new_rows, new_views) = map(_read, (old, new))
  bad, near = collections.Counter(), 0
  for name, a, b in ('row', rows, new_rows), ('view', views, new_views):
    for key in sorted(a.keys() ^ b.keys()):
      bad[f'{name} only in one of them'] += 1
      print(name, *key, 'is only in', 'OLD' if key in a else 'NEW')
    for key in sorted(a.keys() & b.keys()):
      x, y = a[key], b[key]
      tokens = zip(x.get('tokens', ()), y.get('tokens', ()), strict=False)
      at = next((i for i, (s, t) in enumerate(tokens) if s != t), None)
      if at is not None:
        gap = abs(x['logprobs'][at] - y['logprobs'][at])
        print(*key, f'token {at} differs, gap {gap:.2g}')
        near += gap < _GAP
        bad['token'] += gap >= _GAP
        continue
      for said in _differences(x, y, left):
        bad[said.split(':')[0]] += 1
        if sum(bad.values()) < 40:
          print(name, *key, said)
  print(f'{len(rows)} rows, {len(views)} views; {near} near ties; {dict(bad)}')
  return bool(bad) or near > _MOST or not rows


if __name__ == '__main__':
  paths = map(pathlib.Path, sys.argv[1:3])
  sys.exit(main(*paths, set(sys.argv[3:])))
