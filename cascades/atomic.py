"""Writes files whole or not at all.

Data goes to a temporary file or folder beside the destination, which is renamed
at the end. If the disk is full, or the process is interrupted, the destination
stays as it was, and the error names it; the system's own error names no file.
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
# An error number of the system in the message of an error of a Rust library.
_NUMBER = re.compile(r'\(os error (\d+)\)')
# Numbers of the errors of a full disk, by their messages.
_FULL = {
  os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
}


def write_text(path: str | pathlib.Path, text: str) -> None:
  """Writes a text file, in UTF-8."""
  write_bytes(pathlib.Path(path), text.encode())


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a binary file."""
  with replace_file(path) as part:
    part.write_bytes(content)


@contextlib.contextmanager
def replace_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces a file by the file that the caller writes."""
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
  """Replaces some files of a folder by the files that the caller writes."""
  with name_path_in_errors(folder), create_folder(folder):
    # Inside of the folder, since its parent may be on another disk.
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
  """Adds a path to errors of the system that name none."""
  try:
    yield
  except OSError as error:
    temporary = str(error.filename or '').endswith(SUFFIX)
    if error.errno and (not error.filename or temporary):
      raise OSError(error.errno, error.strerror, str(path)) from None
    raise
  except Exception as error:
    code = _error_number(error)
    if code is None:
      raise
    raise OSError(code, os.strerror(code), str(path)) from error


def _error_number(error: BaseException | None) -> int | None:
  """Returns the number of the full-disk error that caused an error, if any."""
  while error is not None:
    if isinstance(error, OSError) and error.errno in _FULL.values():
      return error.errno
    match = _NUMBER.search(str(error))
    if match and int(match[1]) in _FULL.values():
      return int(match[1])
    for text, code in _FULL.items():
      if text in str(error):
        return code
    error = error.__cause__
  return None


@contextlib.contextmanager
def create_folder(path: pathlib.Path) -> Iterator[None]:
  """Creates a folder, and removes it if the body of the `with` fails."""
  new_folders = [x for x in (path, *path.parents) if not x.exists()]
  path.mkdir(parents=True, exist_ok=True)
  try:
    yield
  except BaseException:
    for folder in new_folders:
      with contextlib.suppress(OSError):
        folder.rmdir()
    raise


def _mode(path: pathlib.Path) -> int:
  """Returns the permissions of a file, or those of a new file.

  Some libraries, such as safetensors, write files for their owner only.
  """
  if path.exists():
    return path.stat().st_mode & 0o777
  mask = os.umask(0)
  os.umask(mask)
  return 0o666 & ~mask


def _flush(path: pathlib.Path) -> None:
  """Waits until the data of a file is on the disk.

  A full disk may show only then; and without this call, a power cut could leave
  the name without the data.
  """
  with path.open('rb') as file:
    os.fsync(file.fileno())
