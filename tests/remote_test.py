"""Workdirs on other file systems, by the one that fsspec keeps in memory."""

import contextlib
import os
import socket
import subprocess
import sys

import fsspec
import pytest

from experiments.sweeps import remote


@pytest.fixture
def there():
  system = fsspec.filesystem('memory')
  yield system
  system.rm('/runs', recursive=True) if system.exists('/runs') else None


def _mirror(tmp_path, name='here'):
  return remote.Mirror('memory://runs/a', tmp_path / name)


def _write(mirror, name, text):
  path = mirror.folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def _files(system):
  return {
    name.removeprefix('/runs/a/'): system.cat_file(name).decode()
    for name in system.find('/runs/a')
  }


def test_what_is_kept_is_copied_and_found_again(there, tmp_path):
  one = _mirror(tmp_path, 'one')
  with one.mirrored():
    _write(one, 'config.json', '{}')
    _write(one, 'records/p.jsonl', 'p\n')
    one.push()
    assert _files(there).keys() == {'.owner', 'config.json', 'records/p.jsonl'}
    _write(one, 'records/.q.part', 'half')
    _write(one, 'config.json', '{"a": 1}')
    _write(one, 'summary.csv', 'a,b')
  want = {
    'config.json': '{"a": 1}',
    'records/p.jsonl': 'p\n',
    'summary.csv': 'a,b',
  }
  assert _files(there) == want
  # Elsewhere one goes on from there.
  two = _mirror(tmp_path, 'two')
  with two.mirrored():
    for name, text in want.items():
      assert (two.folder / name).read_text() == text
    (two.folder / 'records/p.jsonl').unlink()
  assert 'records/p.jsonl' not in _files(there)


def test_records_are_copied_after_their_traces(there, tmp_path, monkeypatch):
  mirror, copied = _mirror(tmp_path), []
  real = type(there).put_file

  def put_file(self, path, to, **options):
    copied.append(to.rpartition('/')[2])
    real(self, path, to, **options)

  monkeypatch.setattr(type(there), 'put_file', put_file)
  with mirror.mirrored():
    _write(mirror, 'records/p.jsonl', 'p')
    _write(mirror, 'traces/p.jsonl.gz', 't')
    mirror.push()
    # Nothing is copied twice.
    mirror.push()
  assert copied == ['p.jsonl.gz', 'p.jsonl']


def test_what_is_there_counts_but_no_point_is_lost(there, tmp_path):
  mirror = _mirror(tmp_path)
  _write(mirror, 'config.json', 'old')
  _write(mirror, 'records/p.jsonl', 'p')
  with mirror.mirrored():
    assert not (mirror.folder / 'config.json').exists()
  assert _files(there) == {'records/p.jsonl': 'p'}


def test_two_at_once_are_refused(there, tmp_path):
  mirror = _mirror(tmp_path)
  with (
    mirror.mirrored(),
    pytest.raises(ValueError, match=rf'process {os.getpid()} on .* is using'),
    _mirror(tmp_path, 'other').mirrored(),
  ):
    pass
  # One that is gone keeps nobody out, but only here is it known to be gone.
  missing_process = subprocess.Popen([sys.executable, '-c', ''])
  missing_process.wait()
  owner = f'{missing_process.pid} {socket.gethostname()}'.encode()
  there.pipe_file('/runs/a/.owner', owner)
  with mirror.mirrored():
    pass
  there.pipe_file('/runs/a/.owner', b'1 elsewhere')
  with pytest.raises(ValueError, match=r'on elsewhere .* delete \.owner'):
    mirror.mirrored().__enter__()


@pytest.mark.parametrize('owner', [b'', b'x', b'1', b'-3 vm', b'\xff\x1b[2J'])
def test_an_owner_that_nobody_wrote_keeps_out(there, tmp_path, owner):
  there.pipe_file('/runs/a/.owner', owner)
  with pytest.raises(ValueError, match=r'is using .* delete \.owner') as error:
    _mirror(tmp_path).mirrored().__enter__()
  assert '\x1b' not in str(error.value)


def test_nothing_is_taken_that_leads_out_of_the_folder(there, tmp_path):
  mirror = _mirror(tmp_path)
  (tmp_path / 'outside').mkdir()
  mirror.folder.mkdir(parents=True)
  (mirror.folder / 'records').symlink_to(tmp_path / 'outside')
  there.pipe_file('/runs/a/records/p.jsonl', b'p')
  with pytest.raises(ValueError, match='is a symbolic link'), mirror.mirrored():
    pass
  assert not [*(tmp_path / 'outside').iterdir()]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
  mirror = remote.Mirror('http://127.0.0.1:9/run', tmp_path / 'here')
  with (
    pytest.raises((ValueError, OSError), match=r'127\.0\.0\.1'),
    mirror.mirrored(),
  ):
    pass


@pytest.mark.parametrize(
  'call',
  'exists cat_file find get_file put_file rm_file makedirs pipe_file'.split(),
)
def test_errors_of_a_file_system_are_one_sentence(
  there, tmp_path, monkeypatch, call
):
  there.pipe_file('/runs/a/summary.csv', b'a')
  mirror = remote.Mirror('memory://runs/a?key=hunter2', tmp_path / 'here')
  mirror._root = '/runs/a'

  def fails(*args, **options):
    raise RuntimeError('no answer from https://me:hunter2@host/b?key=hunter2')

  if call == 'cat_file':
    there.pipe_file('/runs/a/.owner', b'1 x')
  monkeypatch.setattr(type(there), call, fails)
  with (
    pytest.raises(ValueError, match=r'^workdir: .*no answer') as error,
    mirror.mirrored(),
  ):
    _write(mirror, 'records/p.jsonl', 'p')
  assert 'hunter2' not in str(error.value)
  assert '\n' not in str(error.value)


def test_a_crash_leaves_what_was_copied(there, tmp_path):
  mirror = _mirror(tmp_path)
  with contextlib.suppress(InterruptedError), mirror.mirrored():
    _write(mirror, 'records/p.jsonl', 'p')
    mirror.push()
    _write(mirror, 'summary.csv', 'a')
    raise InterruptedError
  assert _files(there) == {'records/p.jsonl': 'p'}


def test_no_such_file_system_is_refused():
  with pytest.raises(ValueError, match='workdir: nothing://x cannot be used'):
    remote.Mirror('nothing://x')
  assert not remote.is_url('runs/a')
  assert remote.is_url('gs://bucket/a')
