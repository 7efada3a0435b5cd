"""Models of the Hugging Face hub: 'OWNER/NAME', or 'OWNER/NAME@REVISION'.

A download has the JSON files, the tokenizer, the chat template and the
safetensors of a repository's top folder and no others, so nothing of it is
unpickled or executed. Files stay in the cache of `huggingface_hub`, whose
variables apply: HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT. A repository in
the cache is also found without a network.

A name is resolved to a commit once per process, so that the files of a model
belong together. An existing file or folder of the same name takes precedence.
"""

import pathlib
import re
from collections.abc import Iterable

from cascades import arguments, files
from cascades.models import chat

_NAME = re.compile(r'\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?', re.ASCII)
# Commits of the names that this process has opened.
_commits: dict[str, str] = {}


def is_name(name: str | pathlib.Path) -> bool:
  """Returns True for the name of a repository that is no path here."""
  is_form = isinstance(name, str) and _NAME.fullmatch(name) is not None
  return is_form and not pathlib.Path(name).exists()


def commits(names: Iterable[str | None]) -> dict[str, str]:
  """Returns the commits of the names on the hub that were opened."""
  return {x: _commits[x] for x in names if x and x in _commits}


def label(folder: pathlib.Path) -> str:
  """Returns a folder's name; that of the repository for a download."""
  snapshots, repo = folder.parent, folder.parent.parent.name.split('--')
  is_download = snapshots.name == 'snapshots' and repo[0] == 'models'
  return '/'.join(repo[1:]) if is_download else folder.name


def local_folder[Name: str | pathlib.Path](
  name: Name, weights: bool = True
) -> Name | str:
  """Returns the folder of a download; any other name or path as it is."""
  if not is_name(name):
    return name
  repository, _, revision = str(name).partition('@')
  patterns = ['*.json', 'tokenizer.model', chat.FILE]
  try:
    import huggingface_hub

    path = huggingface_hub.snapshot_download(
      repository,
      revision=_commits.get(str(name), revision or None),
      allow_patterns=patterns + ['*.safetensors'] * weights,
      # A pattern's `*` also matches a slash.
      ignore_patterns='*/*',
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
  folder = pathlib.Path(path)
  _commits[str(name)] = folder.name
  if weights and not any(folder.glob('*.safetensors')):
    raise ValueError(
      f'model: {name} has no *.safetensors file; give a repository with'
      ' safetensors, since pickles, which run code, are not downloaded.'
    )
  return str(folder)
