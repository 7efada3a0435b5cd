"""Tests of reading and showing what others made."""

import gzip
import math
import os
import pathlib
import random
import tracemalloc
from typing import Annotated

import pytest

from cascades.untrusted import bounded, display, paths, schema

ADVICE = 'fetch it again'


class Layer(schema.Schema):
  """A part of a file."""

  window: schema.Size


class Model(schema.Schema):
  """A kind of file."""

  width: schema.Size = 8
  share: schema.Share = 1.0
  base: schema.Positive | None = None
  stops: int | list[int] = 1
  layers: dict[str, Layer] | None = None


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'width': '8'}, "width must be a valid integer, got '8'"),
    ({'width': True}, 'width must be a valid integer, got True'),
    ({'width': 8.0}, 'width must be a valid integer, got 8.0'),
    ({'width': None}, 'width must be a valid integer, got None'),
    ({'width': 0}, 'width must be greater than or equal to 1, got 0'),
    (
      {'width': 2**31},
      f'width must be less than or equal to {2**31 - 1}, got {2**31}',
    ),
    ({'share': math.nan}, 'share must be a finite number, got nan'),
    ({'share': [1]}, 'share must be a valid number, got [1]'),
    ({'base': 0}, 'base must be greater than 0, got 0'),
    (
      {'stops': 'x'},
      "stops must be a valid integer or a valid list, got 'x'",
    ),
    ({'stops': [1, 'x']}, "stops.1 must be a valid integer, got 'x'"),
    ({'layers': {'3': {}}}, 'layers.3.window is missing'),
    (
      {'layers': {'3': {'window': -1}}},
      'layers.3.window must be greater than or equal to 1, got -1',
    ),
    ([], None),
    (None, None),
  ],
)
def test_a_field_is_of_its_type_and_within_its_range(fields, why):
  why = why or 'it is not a JSON object'
  with pytest.raises(ValueError, match=r'^model: a/config\.json: ') as error:
    Model.check(fields, 'model: a/config.json')
  assert str(error.value) == f'model: a/config.json: {why}; {ADVICE}.'


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    (r'"a\ud800b"', 'a\ufffdb'),
    (r'{"\uDFFF": 1}', {'\ufffd': 1}),
    (r'"\ud83d\ude00 \\ud800 \ud83d\\"', '\U0001f600 \\ud800 \ufffd\\'),
    ('\ufeff"bom"', 'bom'),
  ],
)
def test_half_of_a_surrogate_pair_is_no_character(text, value):
  assert bounded.parse_json(text.encode()) == value


def test_the_first_item_that_is_wrong_is_named_alone():
  class Lists(schema.Schema):
    names: schema.Texts | None = None
    ids: Annotated[list[schema.Count], schema.FailFast] | None = None

  for fields, why in (
    ({'names': {'a': 'b', 'c': 3, 'd': 4}}, 'names.c must be a valid string'),
    ({'ids': [1, -2, *['x'] * 300_000]}, 'ids.1 must be greater than or equal'),
  ):
    tracemalloc.start()
    with pytest.raises(ValueError, match=f'^{why}'):
      Lists.parse(fields)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_fields_that_nobody_reads_are_kept():
  found = Model.check({'width': 4, 'other': {'a': [1]}}, 'x')
  assert found.width == 4
  assert found.base is None
  assert found.model_dump(exclude_unset=True) == {
    'width': 4,
    'other': {'a': [1]},
  }


def read(kind, path, **more):
  """Reads a file, of JSON or of lines."""
  if kind == 'lines':

    def refuse(number, why):
      return ValueError(f'data: {path}:{number}: {why}')

    return [*bounded.read_lines(path, refuse, **more)]
  return bounded.read_json(path, 'data', **more)


def refused(kind, path, **more) -> str:
  """Returns why a file is refused, without the option and the advice."""
  with pytest.raises(ValueError, match=rf'^data: {path}') as error:
    read(kind, path, **more)
  return str(error.value).removeprefix(f'data: {path}')


@pytest.mark.parametrize(
  ('content', 'why'),
  [
    (b'{"a": ' + b'[' * 60_000 + b']' * 60_000 + b'}', 'it is nested too'),
    (b'[' * 700 + b']' * 700, ''),
    (b'{"a": 1', 'it is damaged (Expecting'),
    (b'', 'it is damaged (Expecting value'),
    (b'"\xff"', 'it is not UTF-8 text'),
    (b'1' * 5000, 'it is damaged (Exceeds the limit'),
    (b'[' + b'0,' * 2**20 + b'0]', 'it holds more than 1048576 values'),
    (b'[' + b'[],' * 2**16 + b'0]', 'it holds more than 65536 lists'),
  ],
)
def test_json_is_read_within_bounds(tmp_path, content, why):
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  if why:
    assert refused('json', path).startswith(f': {why}')
  else:
    assert isinstance(read('json', path), list)


@pytest.mark.parametrize('kind', ['json', 'lines'])
def test_only_regular_files_are_read(tmp_path, kind):
  os.mkfifo(tmp_path / 'pipe')
  for path in (tmp_path / 'pipe', tmp_path, pathlib.Path('/dev/zero')):
    assert 'is not a regular file' in refused(kind, path)
  with pytest.raises(FileNotFoundError):
    read(kind, tmp_path / 'none')


def test_a_packed_line_is_unpacked_no_further_than_its_bound(tmp_path):
  path = tmp_path / 'a.jsonl.gz'
  with gzip.open(path, 'wb', compresslevel=9) as file:
    file.write(b'{}\n')
    for _ in range(300):
      file.write(bytes(2**20))
  assert path.stat().st_size < 2**20
  tracemalloc.start()
  why = refused('lines', path)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert why == f':2: it has more than {bounded.LINE.size} bytes'
  # Nothing is joined at the end.
  assert peak < 1.3 * bounded.LINE.size


def test_a_packed_file_with_a_wrong_byte_is_refused_by_its_line(tmp_path):
  draw = random.Random(0)
  packed = gzip.compress(
    b''.join(b'%f\n' % draw.random() for _ in range(99)), mtime=0
  )
  path = tmp_path / 'a.jsonl.gz'
  for index in range(10, len(packed)):
    damaged = bytearray(packed)
    damaged[index] ^= 0xFF
    path.write_bytes(damaged)
    assert refused('lines', path)[0] == ':'


def test_names_lead_to_nothing_outside_of_their_folder(tmp_path):
  folder, outside = tmp_path / 'run', tmp_path / 'outside'
  folder.mkdir()
  outside.mkdir()
  (folder / 'link').symlink_to(outside)
  where = 'workdir: index'
  for name in (
    '../a',
    '/a',
    '..',
    '.',
    '',
    'a/b',
    'a\\b',
    'a\0',
    'é' * 128,
    None,
    3,
  ):
    with pytest.raises(ValueError, match=r'index must name a file beside it'):
      paths.sibling(folder, name, where)
  for name in ('link', 'link/a', 'link/a/b'):
    with pytest.raises(ValueError, match='link is a symbolic link'):
      paths.check_links(folder, folder / name)
  assert paths.sibling(folder, 'link', where) == folder / 'link'
  paths.check_links(folder, folder / 'a/b')
  # A folder that the user named may be a link.
  paths.check_links(folder / 'link', folder / 'link/a')


def test_what_acts_on_a_terminal_is_spelled():
  assert display.printable('\x1b]0;t\x07\x9b') == r'\x1b]0;t\x07\x9b'
  assert display.printable('a\u202eb\u200bc\ud800') == r'a\u202eb\u200bc\ud800'
  for text in ('a\n\tb', 'é ∆ 漢字', '\U0001f468\u200d\U0001f469', 'a\xa0b'):
    assert display.printable(text) == text
  assert all(map(display.is_invisible, '\u115f\u1160\u3164\uffa0\u2800'))


def test_each_place_has_its_own_way_to_show_a_text():
  shown = display.for_html('<a>\x1b"\ud800\u202e\ufffe\n')
  assert shown == '&lt;a&gt;\\x1b&quot;\\ud800\\u202e\ufffd\n'
  assert display.for_xml(shown) == shown
  for text in ('=1+1', ' =1+1', '\n=1', '\uff1d1', '\u200b@a', '\t1'):
    assert display.for_csv(text) == f"'{text}"
  assert [display.for_csv(x) for x in ('a=1', -0.5, None)] == [
    'a=1',
    -0.5,
    None,
  ]
  assert display.for_markdown('a|b\n<c>\x1b') == r'a\|b &lt;c\>\\x1b'
  shown = display.for_markdown('https://a www.b @c &lt; $x$ 1.5')
  assert shown == r'https\://a www\.b \@c &amp;lt; \$x\$ 1.5'


@pytest.mark.parametrize(
  ('text', 'shown'),
  [
    ('ftp://me:pw@host:9/run', 'ftp://me:***@host:9/run'),
    ('--data=s3://:pw@b/c x', '--data=s3://:***@b/c x'),
    ('https://b/c?sig=abc&se=1#x', 'https://b/c?***'),
    ('https://h/p#access_token=T', 'https://h/p?***'),
    ('https://ghp_TOKEN@host/x', 'https://***@host/x'),
    ('gs://u:pa/ss@h/b', 'gs://u:***@h/b'),
    ("'s3://u:p@ss@host'", "'s3://u:***@host'"),
    ('s3://b/a@b/c', 's3://b/a@b/c'),
    ('gs://b/c and me:pw@host', 'gs://b/c and me:pw@host'),
  ],
)
def test_urls_are_shown_without_their_secrets(text, shown):
  assert display.without_secrets(text) == shown
