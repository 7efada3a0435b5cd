"""Installs the project in Colab, and writes its address into the notebooks.

Colab has a JAX and a CUDA or TPU plug-in of the same version. The project's
pins would replace the one and not the other, so `install` keeps both, and
NumPy, if pyproject.toml allows their versions.

`python notebooks/colab_setup.py` writes `Repository` of `project.urls` in
pyproject.toml into the badges and form fields of all notebooks.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Distributions of JAX's plug-ins, by the extras that install them.
EXTRAS = {
  'cuda12': ('jax-cuda12-plugin', 'jax-cuda12-pjrt'),
  'cuda13': ('jax-cuda13-plugin', 'jax-cuda13-pjrt'),
  'tpu': ('libtpu',),
}
# Without a path, Colab asks for a repository of GitHub.
_COLAB = 'https://colab.research.google.com/github/'


class Plan(NamedTuple):
  """Arguments of pip, and the reason for them.

  Attributes:
    extras: Extras of the project.
    kept: Constraints that keep installed versions.
    pins: Constraints on packages that are not installed, or are replaced.
    sentence: The versions that are kept or replaced.
  """

  extras: tuple[str, ...]
  kept: list[str]
  pins: list[str]
  sentence: str


def _canonical(name: str) -> str:
  return re.sub(r'[-_.]+', '-', name).lower()


def plan(
  installed: Mapping[str, str],
  pins: Iterable[str],
  dependencies: Iterable[str],
  extras: tuple[str, ...] = (),
  tied: Iterable[str] = (),
) -> Plan:
  """Decides which installed versions are kept.

  Args:
    installed: Versions by canonical names.
    pins: Lines of constraints.txt.
    dependencies: Those of the project, which has lowest versions of some.
    extras: Extras of the project to install.
    tied: Names of packages whose pins may need the pinned JAX or NumPy.
  """
  from packaging.requirements import Requirement

  pinned = {_canonical(line.partition('==')[0]): line for line in pins}
  bounds = {
    _canonical(x.name): x.specifier for x in map(Requirement, dependencies)
  }
  plugins = [x for names in EXTRAS.values() for x in names if x in installed]
  names = ['jax', 'jaxlib', *plugins, 'numpy']
  reasons = {}
  for name in ('jax', 'numpy'):
    version = installed.get(name)
    if version is None:
      reasons[name] = f'{name} is not installed'
    elif not bounds[name].contains(version, prereleases=True):
      reasons[name] = f'{name} {version} is not {bounds[name]}'
  # A JAX is replaced with its plug-in and NumPy: the pins fit together.
  replaced = names if 'jax' in reasons else [*reasons]
  kept = [f'{x}=={installed[x]}' for x in names if x not in replaced]
  used = [x for x, dists in EXTRAS.items() if {*dists} & {*plugins}]
  free = {*installed}
  if not {*kept} <= {*pinned.values()}:
    free |= {*tied}
  free -= {*replaced}
  sentence = f'Keeps {", ".join(kept)}.' if kept else ''
  if replaced:
    versions = ', '.join(pinned[x] for x in replaced)
    sentence += f' Installs {versions}: {", ".join(reasons.values())}.'
  return Plan(
    extras if kept else (*extras, *used),
    kept,
    [line for name, line in pinned.items() if not kept or name not in free],
    sentence.strip(),
  )


def install(*extras: str) -> None:
  """Installs the project, unless it is installed.

  Prints one line that says which versions it keeps or replaces.

  Args:
    extras: Extras of the project.

  Raises:
    RuntimeError: pip fails; the message is pip's.
  """
  if importlib.util.find_spec('cascades'):
    print('Keeps all packages: cascades is already installed.')
    return
  # Of several versions on sys.path, the first is imported.
  found = reversed([*metadata.distributions()])
  installed = {_canonical(x.name or ''): x.version for x in found}
  choice = plan(
    installed,
    (_ROOT / 'constraints.txt').read_text().splitlines(),
    _project()['dependencies'],
    extras,
    tied=lowest_versions(),
  )
  print(choice.sentence, flush=True)
  package = f'{_ROOT}[{",".join(choice.extras)}]'
  # Pins may contradict a version that is kept.
  for constraints in [*choice.kept, *choice.pins], choice.kept:
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
      file.write('\n'.join(constraints))
      file.flush()
      pip = [sys.executable, '-m', 'pip', 'install', '-q', '-c', file.name]
      done = subprocess.run([*pip, package], capture_output=True, text=True)
    if not done.returncode or not choice.kept:
      break
  if done.returncode:
    raise RuntimeError(done.stderr)
  importlib.invalidate_caches()


def with_address(text: str, stem: str, address: str) -> str:
  """Returns a notebook's text with the address of the repository.

  Args:
    text: The .py or .ipynb file.
    stem: Name of the file without its suffix.
    address: Of the repository; empty if it has none. Colab opens notebooks of
      GitHub only, so the badge of any other asks for a repository.
  """
  host, _, path = address.rstrip('/').removesuffix('.git').partition('.com/')
  url = _COLAB
  if host == 'https://github':
    url += f'{path}/blob/main/notebooks/{stem}.ipynb'
  text = re.sub(r'(?<=\[colab\]: )[^\s"\\]+', url, text)
  return re.sub(r"(?<=REPOSITORY = ')[^']*", address, text)


def _project() -> dict[str, Any]:
  return tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']


def lowest_versions() -> dict[str, str]:
  """Returns versions that fit the lowest JAX and NumPy, unlike their pins."""
  lines = (_ROOT / '.ci/lowest.txt').read_text().split()
  return dict(line.split('==') for line in lines)


def project_address() -> str:
  """Returns the address of the repository; empty if it has none."""
  return _project().get('urls', {}).get('Repository', '')


def main() -> None:
  address = project_address()
  for path in (_ROOT / 'notebooks').glob('*.ipynb'):
    for file in (path, path.with_suffix('.py')):
      text = file.read_text(encoding='utf-8')
      changed = with_address(text, path.stem, address)
      file.write_text(changed, encoding='utf-8')


if __name__ == '__main__':
  main()
