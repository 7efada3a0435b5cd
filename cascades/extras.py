"""Optional dependencies: the command that installs one."""

import pathlib

# The folder of a checkout, which has a pyproject.toml.
_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The name on the package index, where `cascades` is another project.
DISTRIBUTION = 'speculative-cascades'


def missing(option: str, package: str, extra: str) -> str:
  """Returns the error message for a dependency that is not installed."""
  requirement = f"'{DISTRIBUTION}[{extra}]'"
  if (_ROOT / 'pyproject.toml').is_file():
    requirement = f"-e '.[{extra}]' in the checkout"
  return f'{option}: {package} is not installed; run pip install {requirement}.'
