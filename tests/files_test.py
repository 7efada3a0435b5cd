"""Files of strangers, shown texts, and files of ours on a full disk."""

import errno
import gzip
import math
import os
import pathlib
import tracemalloc
from typing import Annotated

import pytest

from cascades import files
from cascades.files import Schema
from experiments import cli, escapes, records


class Layer(Schema):
  """A part of a file."""

  window: files.Size


class Model(Schema):
  """A kind of file."""

  width: files.Size = 8
  share: files.NotNegative = 1.0
  base: files.Positive | None = None
  stops: int | list[int] = 1
  layers: dict[str, Layer] | None = None
  ids: Annotated[list[files.Count], files.FailFast] | None = None


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    *(
      ({'width': x}, f'width must be a valid integer, got {x!r}')
      for x in ('8', True, 8.0, None)
    ),
    ({'width': 0}, 'width must be greater than or equal to 1, got 0'),
    ({'width': 2**31}, f'width must be less than or equal to {2**31 - 1}, got'),
    ({'share': math.nan}, 'share must be a finite number, got nan'),
    ({'share': [1]}, 'share must be a valid number, got [1]'),
    ({'base': 0}, 'base must be greater than 0, got 0'),
    ({'stops': 'x'}, "stops.int must be a valid integer, got 'x'"),
    ({'stops': [1, 'x']}, "stops.list[int].1 must be a valid integer, got 'x'"),
    ({'layers': {'3': {}}}, 'layers.3.window is missing'),
    ({'layers': {'3': {'window': -1}}}, 'layers.3.window must be greater than'),
    ({'ids': [1, -2, *['x'] * 300_000]}, 'ids.1 must be greater than or equal'),
    ([], 'it is not a JSON object'),
    (None, 'it is not a JSON object'),
  ],
)
def test_a_field_is_of_its_type_and_within_its_range(fields, why):
  tracemalloc.start()
  with pytest.raises(ValueError, match=r'^model: a/config\.json: ') as error:
    Model.check(fields, 'model: a/config.json')
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  # The first item that is wrong is named alone.
  assert peak < 2**20
  assert str(error.value).startswith(f'model: a/config.json: {why}')
  assert str(error.value).endswith('; fetch it again.')
  # Fields that nobody reads are kept.
  fields = {'width': 4, 'other': {'a': [1]}}
  assert Model.parse(fields).model_dump(exclude_unset=True) == fields


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    (r'"a\ud800b"', 'a\ufffdb'),
    (r'{"\uDFFF": 1}', {'\ufffd': 1}),
    (r'"\ud83d\ude00 \\ud800 \ud83d\\"', '\U0001f600 \\ud800 \ufffd\\'),
    ('\ufeff"bom"', 'bom'),
    ('[' * 700 + ']' * 700, ...),
    ('{"a": ' + '[' * 60_000 + ']' * 60_000 + '}', 'it is nested too deeply'),
    ('{"a": 1', r'it is damaged \(Expecting'),
    ('', r'it is damaged \(Expecting value'),
    (b'"\xff"', 'it is not UTF-8 text'),
    ('[' + '[],' * 2**16 + '0]', 'it holds more than 65536 lists'),
    ('[' + '0,' * (2**22 + 1) + '0]', 'it holds more than 4194304 values'),
    ('1' * 5000, r'it is damaged \(Exceeds the limit'),
    (' ' * 2**24 + '1', r'it has more than 16777216 bytes'),
  ],
)
def test_json_is_read_or_refused(tmp_path, text, value):
  path = tmp_path / 'a.json'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  if isinstance(value, str) and value.startswith('it '):
    with pytest.raises(ValueError, match=f'^data: {path}: {value}'):
      files.read_json(path, 'data')
  else:
    found = files.read_json(path, 'data')
    assert found == (found if value is ... else value)


def _refuse(number, why):
  return ValueError(f'data: :{number}: {why}')


def _read_lines(path):
  return [*files.read_lines(path, _refuse)]


def test_only_regular_files_are_read(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  for read in _read_lines, lambda path: files.read_json(path, 'data'):
    for path in tmp_path / 'pipe', tmp_path, pathlib.Path('/dev/zero'):
      with pytest.raises(ValueError, match=r'^data: .* is not a regular file'):
        read(path)
    with pytest.raises(FileNotFoundError):
      read(tmp_path / 'none')


def test_a_packed_line_is_unpacked_no_further_than_its_bound(tmp_path):
  path = tmp_path / 'a.jsonl.gz'
  with gzip.open(path, 'wb', compresslevel=9) as file:
    file.write(b'{}\n')
    for _ in range(300):
      file.write(bytes(2**20))
  assert path.stat().st_size < 2**20
  tracemalloc.start()
  with pytest.raises(ValueError, match=':2: it has more than 67108864 bytes'):
    _read_lines(path)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  # Nothing is joined at the end.
  assert peak < 1.3 * files.MAX_LINE


def test_names_lead_to_nothing_outside_of_their_folder(tmp_path):
  folder, outside = tmp_path / 'run', tmp_path / 'outside'
  for path in folder / 'a/b', folder / 'wandb', outside:
    path.mkdir(parents=True)
  where = 'workdir: index'
  for name in '../a', '/a', '..', '.', '', 'a/b', 'a\\b', 'a\0', 3:
    with pytest.raises(ValueError, match=r'index must name a file beside it'):
      files.sibling(folder, name, where)
  records.check_tree(folder)
  (folder / 'wandb/link').symlink_to(outside)
  records.check_tree(folder)
  # A folder that the user named may be a link, as may a file beside another.
  (outside / 'link').symlink_to(folder)
  records.check_tree(outside / 'link')
  assert files.sibling(outside, 'link', where) == outside / 'link'
  for name in 'link', 'a/b/link':
    (folder / name).symlink_to(outside)
    with pytest.raises(ValueError, match='link is a symbolic link'):
      records.check_tree(folder)
    (folder / name).unlink()


def test_each_place_has_its_own_way_to_show_a_text():
  assert files.printable('\x1b]0;t\x07\x9b') == r'\x1b]0;t\x07\x9b'
  assert files.printable('a\u202eb\u200bc\ud800') == r'a\u202eb\u200bc\ud800'
  for text in ('a\n\tb', 'é ∆ 漢字', '\U0001f468\u200d\U0001f469', 'a\xa0b'):
    assert files.printable(text) == text
  assert all(map(files.is_invisible, '\u115f\u1160\u3164\uffa0\u2800'))
  shown = escapes.for_xml('<a>\x1b"\ud800\u202e\ufffe\n')
  assert shown == '<a>\\x1b"\\ud800\\u202e\ufffd\n'
  assert escapes.for_xml(shown) == shown
  for text in ('=1+1', ' =1+1', '\n=1', '\uff1d1', '\u200b@a', '\t1'):
    assert escapes.for_csv(text) == f"'{text}"
  for value in 'a=1', '\\frac', '', -0.5, None:
    assert escapes.for_csv(value) == value
  assert escapes.for_markdown('a|b\n<c>\x1b') == r'a\|b &lt;c\>\\x1b'
  shown = escapes.for_markdown('https://a www.b @c &lt; $x$ 1.5')
  assert shown == r'https\://a www\.b \@c &amp;lt; \$x\$ 1.5'


@pytest.mark.parametrize(
  ('text', 'shown'),
  [
    ('ftp://me:pw@host:9/run', 'ftp://***@host:9/run'),
    ('--data=s3://:pw@b/c x', '--data=s3://***@b/c x'),
    ('https://b/c?sig=abc&se=1#x', 'https://b/c?***'),
    ('https://h/p#access_token=T', 'https://h/p?***'),
    ('https://ghp_TOKEN@host/x', 'https://***@host/x'),
    ('gs://u:pa/ss@h/b', 'gs://***@h/b'),
    ("'s3://u:p@ss@host'", "'s3://***@host'"),
    ('gs://b/c and me:pw@host', 'gs://b/c and me:pw@host'),
  ],
)
def test_urls_are_shown_without_their_secrets(text, shown):
  assert files.without_secrets(text) == shown


def contents(folder):
  """All files and folders, with what is in them."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in sorted(folder.rglob('*'))
  }


def _interrupt(file):
  with files.replace_file(file) as part:
    part.write_text('half')
    raise KeyboardInterrupt


def test_a_file_stays_as_it_was_until_another_is_whole(tmp_path, monkeypatch):
  def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  file = tmp_path / 'new/a.txt'
  files.write_text(file, 'first')
  with pytest.raises(KeyboardInterrupt):
    _interrupt(file)
  # A disk may be full only at the end.
  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(OSError, match='No space left') as error:
    files.write_text(file, 'second')
  assert cli._sentence(error.value) == (
    f'{file}: No space left on device. Free space, then run it again.'
  )
  with (
    pytest.raises(OSError, match='No space left') as error,
    files.replace_files(tmp_path / 'c') as part,
  ):
    (part / 'd').write_text('e')
  assert error.value.filename == str(tmp_path / 'c/d')
  assert contents(tmp_path) == {'new': None, 'new/a.txt': b'first', 'c': None}


@pytest.mark.parametrize(
  ('error', 'name'),
  [
    (ValueError('I/O error: No space left on device (os error 28)'), 'a'),
    (ValueError("EXHAUSTED: No space left on device [os_error='28']"), 'a'),
    (OSError(errno.ENOSPC, 'No space left on device'), 'a'),
    (ValueError('another'), None),
    # What names a file already keeps its name.
    (OSError(errno.ENOSPC, 'No space left on device', 'b'), 'b'),
  ],
)
def test_errors_of_libraries_become_the_systems(error, name):
  with (
    pytest.raises(OSError if name else ValueError) as told,
    files.name_path_in_errors(pathlib.Path('a')),
  ):
    raise error
  if name:
    assert told.value.errno == errno.ENOSPC
    assert told.value.filename == name
