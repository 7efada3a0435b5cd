"""Files that are written whole or not at all.

What is written goes to a temporary file or folder beside the destination and is
renamed at the end. If the disk is full, or the process is interrupted, the
destination stays as it was, and the error names it: the system itself does not
say what it could not write.
"""

import contextlib
import errno
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterator

SUFFIX = '.part'
# How libraries spell the system's errors in errors of their own.
_NUMBER = re.compile(r'\(os error (\d+)\)')
_FULL = {
  os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
}


def write_text(path: str | pathlib.Path, text: str) -> None:
  """Writes a text, in UTF-8."""
  write_bytes(pathlib.Path(path), text.encode())


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes bytes."""
  with replace_file(path) as part:
    part.write_bytes(content)


@contextlib.contextmanager
def replace_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces a file by what is written meanwhile.

  Args:
    path: The file; its folder is made if it is not there.

  Yields:
    Where to write; nothing is there yet.

  Raises:
    OSError: It cannot be written; names the file.
  """
  with name_path_in_errors(path), create_folder(path.parent):
    part = path.parent / f'.{secrets.token_hex(8)}{SUFFIX}'
    try:
      yield part
      _flush(part)
      part.chmod(_mode(path))
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces some files of a folder by what is written meanwhile.

  Args:
    folder: Made if it is not there; its other files stay.

  Yields:
    An empty folder to write into, without folders of its own.

  Raises:
    OSError: A file cannot be written; names it as it would be called.
  """
  with name_path_in_errors(folder), create_folder(folder):
    # Within it, for what lies beside it may be another disk.
    part = folder / f'.{secrets.token_hex(8)}{SUFFIX}'
    try:
      part.mkdir()
      yield part
      files = sorted(part.iterdir())
      for file in files:
        with name_path_in_errors(file):
          _flush(file)
      for file in files:
        os.replace(file, folder / file.name)
    except OSError as error:
      name = pathlib.Path(error.filename or part)
      if part in name.parents:
        error.filename = str(folder / name.name)
      raise
    finally:
      shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def name_path_in_errors(path: pathlib.Path) -> Iterator[None]:
  """Has errors of the system name a path, if they name none.

  Args:
    path: What is written.

  Raises:
    OSError: As it was raised within, or made of a library's own error that says
      that the disk is full.
  """
  try:
    yield
  except OSError as error:
    temporary = str(error.filename or '').endswith(SUFFIX)
    if error.errno and (not error.filename or temporary):
      raise OSError(error.errno, error.strerror, str(path)) from None
    raise
  except Exception as error:
    code = _code(error)
    if code is None:
      raise
    raise OSError(code, os.strerror(code), str(path)) from error


def _code(error: BaseException | None) -> int | None:
  """The number of the system's error that is behind a library's own."""
  while error is not None:
    if isinstance(error, OSError) and error.errno in _FULL.values():
      return error.errno
    found = _NUMBER.search(str(error))
    if found and int(found[1]) in _FULL.values():
      return int(found[1])
    for text, code in _FULL.items():
      if text in str(error):
        return code
    error = error.__cause__
  return None


@contextlib.contextmanager
def create_folder(path: pathlib.Path) -> Iterator[None]:
  """Makes a folder, and removes it if what is done meanwhile fails.

  Args:
    path: The folder; if it is there already, or holds anything, it stays.
  """
  made = [x for x in (path, *path.parents) if not x.exists()]
  path.mkdir(parents=True, exist_ok=True)
  try:
    yield
  except BaseException:
    for each in made:
      with contextlib.suppress(OSError):
        each.rmdir()
    raise


def _mode(path: pathlib.Path) -> int:
  """The permissions of a file, or those of a new one if it is not there.

  Some libraries, such as safetensors, write files for their owner alone.
  """
  if path.exists():
    return path.stat().st_mode & 0o777
  mask = os.umask(0)
  os.umask(mask)
  return 0o666 & ~mask


def _flush(path: pathlib.Path) -> None:
  """Waits until a file is on the disk, which may be full only then.

  Else the name could be there after a power cut, and nothing under it.
  """
  with path.open('rb') as file:
    os.fsync(file.fileno())
