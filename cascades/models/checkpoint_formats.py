"""Checkpoint formats: a registry of the ways in which models are stored.

Each `CheckpointFormat` says which names and paths it can open, and opens them
as a `checkpoint_source.CheckpointSource`. The formats of the library are in
`builtin_formats`; `CHECKPOINT_FORMATS.register` adds others.

A name is opened by the library's format that matches it; if none does, by the
added format that matches it. 'FORMAT:NAME' selects a format.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Callable, Sequence

from cascades import arguments
from cascades.models import bundled, package_index
from cascades.models.checkpoint_source import CheckpointSource
from cascades.registries import Registry, split

# A name of a model, or the path of a folder or file. A `pathlib.Path` is never
# the name of a bundled model.
NameOrPath = str | pathlib.Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointFormat:
  """A way in which models are stored: the entry of a name.

  Attributes:
    help: The names, folders or files that the format opens, in a few words.
    matches: Returns True if a name or path has this format. It must not read
      parameters.
    make_source: Opens a name or path that `matches` accepts, or that the user
      gave behind the format's name. Raises ValueError if it is damaged.
    names: Returns the names that are no paths; errors list them.
  """

  help: str
  matches: Callable[[NameOrPath], bool]
  make_source: Callable[[NameOrPath], CheckpointSource]
  names: Callable[[], Sequence[str]] = tuple


CHECKPOINT_FORMATS: Registry[CheckpointFormat] = Registry(
  'checkpoint_format', CheckpointFormat
)


def local_path(name: NameOrPath) -> pathlib.Path | None:
  """Returns the existing folder or file of a name; None if there is none.

  Names of bundled and packaged models are no paths: './NAME' is one.
  """
  if isinstance(name, str) and (
    name in (*bundled.BUNDLED, *bundled.BUNDLED_WITHOUT_TABLE)
    or name in package_index.MODELS
  ):
    return None
  path = pathlib.Path(name)
  return path if path.exists() else None


def open_checkpoint(name: NameOrPath) -> CheckpointSource:
  """Opens a checkpoint by its format."""
  arguments.file_name('model', str(name))
  selected, rest = split_format(name)
  if selected:
    return CHECKPOINT_FORMATS[selected].make_source(rest)
  matching = matching_formats(name)
  if not matching:
    raise _unknown(name)
  if len(matching) > 1:
    raise ValueError(
      f'model: {name} matches the formats {" and ".join(matching)}; select one,'
      f" as in '{matching[0]}:{name}'."
    )
  return CHECKPOINT_FORMATS[matching[0]].make_source(name)


def split_format(name: NameOrPath) -> tuple[str, str]:
  """Splits 'FORMAT:NAME'; the format is empty if the name has none."""
  selected, rest = split(str(name))
  if rest and selected in CHECKPOINT_FORMATS and local_path(name) is None:
    return selected, rest
  return '', str(name)


def matching_formats(name: NameOrPath) -> list[str]:
  """Returns names of formats that match, of others if no built-in does."""
  formats = CHECKPOINT_FORMATS
  if selected := split_format(name)[0]:
    return [selected]
  core = formats.core()
  matching = [x for x, entry in core.items() if entry.matches(name)]
  return matching or [
    x for x, entry in formats.items() if x not in core and entry.matches(name)
  ]


def _unknown(name: NameOrPath) -> ValueError:
  """Returns the error for a name that no format matches."""
  formats = CHECKPOINT_FORMATS
  listing = ', '.join(f'{x} ({entry.help})' for x, entry in formats.items())
  if path := local_path(name):
    return ValueError(
      f'model: {path} has none of the known checkpoint formats; give one of'
      f' {listing}.'
    )
  prefix, rest = split(str(name))
  if local_path(rest) and matching_formats(rest):
    return ValueError(
      f'model: {rest} declares its own architecture; give it without'
      f" '{prefix}:'."
    )
  names = [x for entry in formats.values() for x in entry.names()]
  nearest = difflib.get_close_matches(str(name), names, 1, 0.0)
  guess = f'did you mean {nearest[0]!r}? ' if nearest else ''
  return ValueError(
    f'model: {arguments.quote(str(name))} is not a folder or a known name;'
    f' {guess}Choose from {", ".join(names)}; or give a file or folder.'
  )
