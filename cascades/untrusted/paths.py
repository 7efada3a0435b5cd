"""Names that a file or a bucket gives, resolved within a folder or refused."""

import os
import pathlib
from collections.abc import Collection

from cascades import arguments


def sibling(folder: pathlib.Path, name: object, where: str) -> pathlib.Path:
  """Returns the file of that name in a folder.

  The file itself may be a link, as those of the hub's cache are.

  Args:
    folder: Holds the file that gives the name.
    name: What it gives.
    where: Option and file that gives it, for errors.

  Raises:
    ValueError: It is no plain name: it leads elsewhere, or is none at all.
  """
  plain = (
    isinstance(name, str)
    and name not in ('', '.', '..')
    and not {'/', '\\', '\0'} & set(name)
    and len(name.encode(errors='replace')) <= 255
  )
  if not plain:
    raise ValueError(
      f'{where} must name a file beside it, got {arguments.quote(name)}; fetch'
      ' it again.'
    )
  return folder / name


def descendant(folder: pathlib.Path, name: str, where: str) -> pathlib.Path:
  """Returns a path below a folder that goes over no link and no '..'.

  Args:
    folder: What is read or written lies below it.
    name: Relative, as a bucket or a file gives it; with '/' between folders.
    where: The option, for errors.

  Raises:
    ValueError: It leads out of the folder, or over a link.
  """
  parts = pathlib.PurePosixPath(name).parts
  odd = {'..', '/', ''} & {*parts} or '\0' in name or '\\' in name
  if not parts or odd:
    raise ValueError(
      f'{where}: {arguments.quote(name)} leads out of {folder}; delete it'
      ' there, or choose another folder.'
    )
  path = folder.joinpath(*parts)
  check_links(folder, path, where)
  return path


def check_tree(
  folder: pathlib.Path, but: Collection[str] = (), where: str = 'workdir'
) -> None:
  """Refuses a folder in which a link stands, however deep; see `check_links`.

  Args:
    folder: May be a link itself, and need not be there.
    but: Folders in it, relative to it, within which links may stand.
    where: The option, for errors.

  Raises:
    ValueError: There is a link.
  """
  for parent, folders, files in os.walk(folder):
    for name in (*folders, *files):
      check_links(folder, pathlib.Path(parent, name), where)
    place = pathlib.Path(parent).relative_to(folder)
    folders[:] = [x for x in folders if (place / x).as_posix() not in but]


def check_links(
  folder: pathlib.Path, path: pathlib.Path, where: str = 'workdir'
) -> None:
  """Refuses a path on which a link stands, below a folder.

  What is written there would be written where the link leads.

  Args:
    folder: May be a link itself: the user named it.
    path: Below it.
    where: The option, for errors.

  Raises:
    ValueError: A part of the path, or its end, is a link.
  """
  for part in (path, *path.parents):
    if part == folder:
      return
    if part.is_symlink():
      raise ValueError(
        f'{where}: {part} is a symbolic link, which is not followed here;'
        ' replace it by what it leads to.'
      )
