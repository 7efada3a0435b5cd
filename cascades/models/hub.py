"""Models of the Hugging Face hub: 'OWNER/NAME', or 'OWNER/NAME@REVISION'.

A download has the JSON files, the chat template and the safetensors of a
repository's top folder and no others, so nothing of it is unpickled or
executed; `tokenizer.model` is added if the repository has no `tokenizer.json`.
Files stay in the cache of `huggingface_hub`, whose variables apply: HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT. A repository in the cache is also found
without a network.

A name is resolved to a commit once per process, so that the files of a model
belong together. An existing file or folder of the same name takes precedence;
'hub:OWNER/NAME' selects the hub.
"""

import logging
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from cascades import arguments, files
from cascades.models import chat, tensor_files

PREFIX = 'hub:'
_NAME = re.compile(
  r'(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?', re.ASCII
)
_LOGGER = logging.getLogger(__name__)
# Commits of the names that this process has opened.
_commits: dict[str, str] = {}


def is_name(name: str | pathlib.Path) -> bool:
  """Returns True for the name of a repository that is no path here."""
  plain = str(name).removeprefix(PREFIX)
  is_form = isinstance(name, str) and _NAME.fullmatch(plain) is not None
  return is_form and (plain != name or not pathlib.Path(name).exists())


def at_revision(name: str | pathlib.Path, revision: str | None) -> Any:
  """Returns the name of a repository at a revision."""
  if revision is None:
    return name
  full_name = f'{name}@{revision}'
  if not is_name(name) or not is_name(full_name) or '@' in str(name):
    raise ValueError(
      f'revision: {files.printable(str(revision))} cannot be combined with'
      f' the model {files.printable(str(name))}; give a branch, a tag or a'
      " commit, and a name on the hub, which begins with 'hub:' if a folder has"
      ' it too.'
    )
  return full_name


def commits(names: Iterable[str]) -> dict[str, str]:
  """Returns the commits of the names on the hub that were opened."""
  return {name: _commits[name] for name in names if name in _commits}


def local_folder[Name: str | pathlib.Path](name: Name) -> Name | str:
  """Returns the folder of a download; any other name or path as it is."""
  return str(fetch(str(name))) if is_name(name) else name


def label(folder: pathlib.Path) -> str:
  """Returns a folder's name; that of the repository for a download."""
  snapshots, repo = folder.parent, folder.parent.parent.name.split('--')
  is_download = snapshots.name == 'snapshots' and repo[0] == 'models'
  return '/'.join(repo[1:]) if is_download else folder.name


def fetch(name: str, weights: bool = True) -> pathlib.Path:
  """Returns the folder of a repository's files; downloads what is missing."""
  plain = name.removeprefix(PREFIX)
  match = _NAME.fullmatch(plain)
  if match is None:
    raise ValueError(
      f'model: {files.printable(plain)} is not a name on the hub; write'
      ' OWNER/NAME or OWNER/NAME@REVISION.'
    )
  commit = _commits.get(name, match['revision'])
  folder = _download(plain, commit, '*.json', chat.FILE)
  _commits[name] = commit = folder.name
  if not (folder / 'tokenizer.json').exists():
    _download(plain, commit, 'tokenizer.model')
  if not weights:
    return folder
  # A name in the index could be a pattern of other files.
  indexed = [
    file
    for file in sorted(tensor_files.weight_files(folder))
    if file.endswith('.safetensors')
  ]
  if not all((folder / x).exists() for x in indexed or [tensor_files.SINGLE]):
    _LOGGER.info('downloading %s', plain)
    _download(plain, commit, *(indexed or ['*.safetensors']), quiet=False)
  if not any(folder.glob('*.safetensors')):
    raise ValueError(
      f'model: {plain} has no *.safetensors file; give a repository with'
      ' safetensors, since pickles, which run code, are not downloaded.'
    )
  return folder


def _download(
  name: str, revision: str | None, *patterns: str, quiet: bool = True
) -> pathlib.Path:
  """Downloads files of a repository's top folder; returns their folder."""
  try:
    import huggingface_hub
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
      """A progress bar that prints nothing."""

      def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs | {'disable': True})

    folder = huggingface_hub.snapshot_download(
      name.partition('@')[0],
      revision=revision,
      allow_patterns=list(patterns),
      # A pattern's `*` also matches a slash.
      ignore_patterns='*/*',
      tqdm_class=Silent if quiet else None,
    )
  except ModuleNotFoundError:
    reason = arguments.missing('model', 'huggingface_hub', 'hub')
    raise ValueError(reason) from None
  # A client of the network raises many kinds of errors.
  except Exception as error:
    # A full disk and a folder that cannot be written are not the hub's.
    if isinstance(error, OSError) and error.errno and error.filename:
      raise
    raise ValueError(
      f'model: {name} is not a local folder, and the hub has not sent it'
      f' ({files.sentence(str(error))}); correct the name, give a token in'
      ' HF_TOKEN, or run the command again, which continues with the files that'
      ' are missing.'
    ) from error
  return pathlib.Path(folder)
