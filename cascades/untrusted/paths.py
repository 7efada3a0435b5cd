"""Resolves untrusted names of files to paths inside of a folder."""

import os
import pathlib
from collections.abc import Collection

from cascades import arguments


def sibling(folder: pathlib.Path, name: object, location: str) -> pathlib.Path:
  """Returns the path of a file in a folder by its plain name.

  The file itself may be a link, as in the hub's cache.
  """
  is_plain = (
    isinstance(name, str)
    and name not in ('', '.', '..')
    and not {'/', '\\', '\0'} & set(name)
    and len(name.encode(errors='replace')) <= 255
  )
  if not is_plain:
    raise ValueError(
      f'{location} must name a file beside it, got {arguments.quote(name)};'
      ' fetch it again.'
    )
  return folder / str(name)


def check_tree(
  folder: pathlib.Path, exempt: Collection[str] = (), location: str = 'workdir'
) -> None:
  """Refuses a folder that contains a symbolic link at any depth."""
  for parent, folders, files in os.walk(folder):
    for name in (*folders, *files):
      check_links(folder, pathlib.Path(parent, name), location)
    relative = pathlib.Path(parent).relative_to(folder)
    folders[:] = [x for x in folders if (relative / x).as_posix() not in exempt]


def check_links(
  folder: pathlib.Path, path: pathlib.Path, location: str = 'workdir'
) -> None:
  """Refuses a path below a folder that leads over a symbolic link.

  Data written to such a path would be written to the link's target.
  """
  for part in (path, *path.parents):
    if part == folder:
      return
    if part.is_symlink():
      raise ValueError(
        f'{location}: {part} is a symbolic link, which is not followed here;'
        ' replace it by its target.'
      )
