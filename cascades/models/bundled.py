"""Models that come with the package, in `cascades/assets`."""

import pathlib

from cascades import arguments

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
BUNDLED = (
  'tiny-drafter',
  'tiny-specialist',
  'tiny-verifier',
)
# Drafters that share the embedding table of a model of `package_index.MODELS`.
BUNDLED_WITHOUT_TABLE = ('gemma3-270m-multi30k-de-en',)


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
