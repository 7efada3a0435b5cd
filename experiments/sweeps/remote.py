"""Workdirs on other file systems, mirrored by a folder of this machine.

`--workdir=gs://bucket/run` works in a folder of the user's cache. The folder
starts as a copy of the URL, and each complete file is copied back, traces
before their records. All file systems of fsspec are supported.
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
  """Returns True for a URL, and False for a path of this machine."""
  return '://' in workdir


class Mirror:
  """A local folder and its copy at a URL.

  Attributes:
    folder: The local folder.
    url: The URL of the copy, without secrets.
  """

  def __init__(self, url: str, folder: pathlib.Path | None = None):
    """Connects to the file system."""
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

  def _remote_path(self, path: pathlib.Path) -> str:
    """Returns the path of a local file's copy."""
    return f'{self._root}/{path.relative_to(self.folder).as_posix()}'

  def _call(self, method: str, *args: Any, **options: Any) -> Any:
    """Calls a method of the file system by its name."""
    try:
      return getattr(self._fs, method)(*args, **options)
    except (OSError, ValueError):
      raise
    except Exception as error:
      reason = f'{type(error).__name__}: {error}'
      raise ValueError(
        display.sentence(f'workdir: {method} of {self.url} failed ({reason}).')
      ) from None

  @contextlib.contextmanager
  def mirrored(self) -> Iterator[None]:
    """Locks the URL, copies its files here, and copies changes back."""
    owner, host = f'{self._root}/{_OWNER}', socket.gethostname()
    if self._call('exists', owner):
      text = self._call('cat_file', owner).decode(errors='replace')
      process_id, _, owner_host = text.partition(' ')
      process_id = arguments.parse_count(process_id)
      if process_id is None or owner_host != host or _is_alive(process_id):
        process = arguments.quote(text)
        if process_id is not None:
          process = f'process {process_id} on {display.printable(owner_host)}'
        raise ValueError(
          f'workdir: {process} is using {self.url}; wait until it ends, or, if'
          f' it has already ended, delete {_OWNER} there.'
        )
    try:
      self._call('makedirs', self._root, exist_ok=True)
      self._call('pipe_file', owner, f'{os.getpid()} {host}'.encode())
    except (OSError, ValueError) as error:
      message = f'workdir: {self.url} cannot be written ({error}).'
      raise ValueError(display.sentence(message)) from None
    try:
      self._pull()
      yield
      self.push()
    finally:
      self._call('rm_file', owner)

  def _pull(self) -> None:
    """Copies new files here, and deletes local files without a copy.

    Local points are kept: their names identify them, so that a point whose copy
    failed is not decoded again.
    """
    for name, details in self._call('find', self._root, detail=True).items():
      relative = os.path.relpath(name, self._root)
      path = paths.descendant(self.folder, relative, 'workdir')
      if path.name == _OWNER:
        continue
      if not path.exists() or path.stat().st_size != details['size']:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f'.{path.name}.part')
        self._call('get_file', name, str(part))
        part.replace(path)
      self._copied[path] = _state(path)
    for path in self.folder.rglob('*'):
      is_point = path.parent.name in ('records', 'traces')
      if path.is_file() and path not in self._copied and not is_point:
        path.unlink()

  def push(self) -> None:
    """Copies changed files to the URL, and deletes copies without a file."""
    files = [path for path in self.folder.rglob('*') if path.is_file()]
    # Records come last: their presence means that a point is done.
    files.sort(key=lambda path: path.parent.name == 'records')
    files = [path for path in files if not path.name.startswith('.')]
    for path in files:
      if self._copied.get(path) != _state(path):
        copy = self._remote_path(path)
        self._call('makedirs', copy.rpartition('/')[0], exist_ok=True)
        self._call('put_file', str(path), copy)
        self._copied[path] = _state(path)
    for path in set(self._copied) - set(files):
      self._call('rm_file', self._remote_path(path))
      del self._copied[path]


def _state(path: pathlib.Path) -> tuple[int, int]:
  """Returns the time and size of a file, which change when it is written."""
  stat = path.stat()
  return stat.st_mtime_ns, stat.st_size


def _is_alive(process_id: int) -> bool:
  """Returns True if a process of this machine exists."""
  try:
    os.kill(process_id, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True
