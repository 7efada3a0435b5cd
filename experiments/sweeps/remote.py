"""Workdirs on other file systems: a folder here, and its copy there.

`--workdir=gs://bucket/run` works in a folder of the user's cache, which begins
with what lies there already; what is written is copied as it is whole, traces
before their records. Any file system of fsspec will do.
"""

import contextlib
import hashlib
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import fsspec

from cascades import arguments, compilation
from cascades.untrusted import display, paths

_OWNER = '.owner'


def is_url(workdir: str) -> bool:
  """Whether it is no path of this machine."""
  return '://' in workdir


class Mirror:
  """A folder here and its copy elsewhere.

  Attributes:
    folder: The one here.
    url: Where the copy lies.
  """

  def __init__(self, url: str, folder: pathlib.Path | None = None):
    """Finds the file system.

    Raises:
      ValueError: There is none of that name, or it cannot be used.
    """
    try:
      self._fs, self._root = fsspec.core.url_to_fs(url)
    except (ImportError, OSError, ValueError) as error:
      raise ValueError(
        display.sentence(f'workdir: {url} cannot be used ({error}).')
      ) from None
    self.url = display.without_secrets(url)
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    self.folder = (
      folder or compilation.cache_folder().parent / 'workdirs' / name
    )
    self._copied: dict[pathlib.Path, tuple[int, int]] = {}

  def _there(self, path: pathlib.Path) -> str:
    return f'{self._root}/{path.relative_to(self.folder).as_posix()}'

  def _ask(self, call: str, *args: Any, **options: Any) -> Any:
    """Calls the file system, which may have errors of its own.

    Raises:
      OSError: Of the file system.
      ValueError: Any other error became one sentence.
    """
    try:
      return getattr(self._fs, call)(*args, **options)
    except (OSError, ValueError):
      raise
    except Exception as error:
      why = f'{type(error).__name__}: {error}'
      raise ValueError(
        display.sentence(f'workdir: {self.url} failed in {call} ({why}).')
      ) from None

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Keeps others out, takes what is there, and leaves a copy of the rest.

    Raises:
      ValueError: Another process is at work there.
    """
    owner, here = f'{self._root}/{_OWNER}', socket.gethostname()
    if self._ask('exists', owner):
      said = self._ask('cat_file', owner).decode(errors='replace')
      process, _, host = said.partition(' ')
      process = arguments.parse_count(process)
      if process is None or host != here or _lives(process):
        who = arguments.quote(said)
        if process is not None:
          who = f'process {process} on {display.printable(host)}'
        raise ValueError(
          f'workdir: {who} is at work in {self.url}; wait for it, or, if it is'
          f' gone, delete {_OWNER} there.'
        )
    try:
      self._ask('makedirs', self._root, exist_ok=True)
      self._ask('pipe_file', owner, f'{os.getpid()} {here}'.encode())
    except (OSError, ValueError) as error:
      said = f'workdir: nothing can be written to {self.url} ({error}).'
      raise ValueError(display.sentence(said)) from None
    try:
      self._pull()
      yield
      self.push()
    finally:
      self._ask('rm_file', owner)

  def _pull(self) -> None:
    """What is there, and not yet here; what is not there does not count.

    But for points, which are named by what they are: one whose copy failed need
    not be made again.
    """
    for name, about in self._ask('find', self._root, detail=True).items():
      name_there = os.path.relpath(name, self._root)
      path = paths.descendant(self.folder, name_there, 'workdir')
      if path.name == _OWNER:
        continue
      if not path.exists() or path.stat().st_size != about['size']:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f'.{path.name}.part')
        self._ask('get_file', name, str(part))
        part.replace(path)
      self._copied[path] = _state(path)
    for path in self.folder.rglob('*'):
      point = path.parent.name in ('records', 'traces')
      if path.is_file() and path not in self._copied and not point:
        path.unlink()

  def push(self) -> None:
    """Copies what is here and has changed; takes away what is here no more."""
    found = [path for path in self.folder.rglob('*') if path.is_file()]
    # What says that a point is done comes after what belongs to it.
    found.sort(key=lambda path: path.parent.name == 'records')
    found = [path for path in found if not path.name.startswith('.')]
    for path in found:
      if self._copied.get(path) != _state(path):
        there = self._there(path)
        self._ask('makedirs', there.rpartition('/')[0], exist_ok=True)
        self._ask('put_file', str(path), there)
        self._copied[path] = _state(path)
    for path in set(self._copied) - set(found):
      self._ask('rm_file', self._there(path))
      del self._copied[path]


def _state(path: pathlib.Path) -> tuple[int, int]:
  stat = path.stat()
  return stat.st_mtime_ns, stat.st_size


def _lives(process: int) -> bool:
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True
