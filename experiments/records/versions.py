"""Results versions: names of the code that results were decoded with.

The name of a point depends on everything that can change its results, including
the code. A hash of the source alone would change with the name of a variable.
`results_version.json` therefore holds a version, and the hash of the source
that was last shown to give that version's results: `python -m
experiments.accept` runs the test of fixed results and writes the hash. Source
with that hash is named by the version, and any other source by its own hash.
Code that no deciding module defines adds a hash of its own; see
`external_code`.
"""

import ast
import dataclasses
import functools
import hashlib
import json
import pathlib
import typing
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = pathlib.Path(__file__).with_name('results_version.json')
# The fixed results of the version; only a checkout has them.
RESULTS = ROOT / 'tests/data/fixed_results.json'
# Modules of the library that only observe models, answers and methods.
OBSERVING_MODULES = (
  'cascades/contrib/engine_audits/',
  'cascades/contrib/lm_eval.py',
  'cascades/contrib/look_ahead/windowed_blocks.py',
  'cascades/proof/',
  'cascades/sampler/agreement.py',
  'cascades/models/memory.py',
  'cascades/sampler/scoring.py',
)
# Modules outside the library that produce answers and records.
EXPERIMENT_MODULES = (
  'experiments/tasks/',
  'experiments/sweeps/curve_plan.py',
  'experiments/sweeps/outcomes.py',
  'experiments/sweeps/plan.py',
  'experiments/sweeps/sequence.py',
  'experiments/sweeps/worker.py',
)


@dataclasses.dataclass(frozen=True)
class Accepted:
  """The contents of `results_version.json`.

  Attributes:
    version: The results version.
    changelog: A line on the changes of each version.
    source: Hash of the source that last passed the test of fixed results.
    results: Hash of the file of those results.
  """

  version: int
  changelog: dict[str, str]
  source: str
  results: str


def read_accepted() -> Accepted:
  """Reads the accepted version."""
  try:
    accepted = Accepted(**json.loads(FILE.read_text(encoding='utf-8')))
    for field in dataclasses.fields(Accepted):
      kind = typing.get_origin(field.type) or field.type
      if type(getattr(accepted, field.name)) is not kind:
        raise TypeError(f'{field.name} is not of type {kind.__name__}')
  except (OSError, TypeError, ValueError) as error:
    raise ValueError(
      f'results_version: {FILE} cannot be read ({error}); restore it from git.'
    ) from None
  return accepted


def deciding_modules(root: pathlib.Path = ROOT) -> dict[str, pathlib.Path]:
  """Returns the modules that can change a result, by paths below `root`.

  These are all modules of the library except `OBSERVING_MODULES`, and
  `EXPERIMENT_MODULES`, so that a new module of the library is included.
  """
  names = [
    path.relative_to(root).as_posix()
    for layer in ('cascades', 'experiments')
    for path in (root / layer).rglob('[!.]*.py')
  ]
  return {
    name: root / name
    for name in sorted(names)
    if name.startswith(EXPERIMENT_MODULES)
    or (name.startswith('cascades/') and not name.startswith(OBSERVING_MODULES))
  }


def source_hash(root: pathlib.Path = ROOT) -> str:
  """Hashes the deciding modules, without comments and docstrings."""
  hashed = hashlib.sha256()
  for name, path in deciding_modules(root).items():
    hashed.update(f'{name}\n{hash_syntax(path.read_bytes())}\n'.encode())
  return hashed.hexdigest()


def results_hash() -> str:
  """Hashes the file of fixed results."""
  return hashlib.sha256(RESULTS.read_bytes()).hexdigest()


@functools.cache
def current_code() -> str:
  """Names the code of this process by its results version or its hash."""
  source = source_hash()
  if source == read_accepted().source:
    return f'results version {read_accepted().version}'
  return f'source {source}'


def is_version(name: str) -> bool:
  """Returns True if a name of `current_code` is a results version."""
  return name.startswith('results version ')


def describe(name: str) -> str:
  """Describes a name of `current_code`, also one from an old workdir."""
  if is_version(name):
    return name
  kind, _, source = name.rpartition(' ')
  if kind == 'source':
    return f'source {source[:12]}, which belongs to no results version'
  return f'source {source[:12]}, which is older than results versions'


@functools.cache
def hash_syntax(text: bytes) -> str:
  """Hashes the syntax tree of a module.

  Comments, docstrings and other constant expressions are excluded. Empty fields
  are excluded too: newer versions of Python have more of them, and the hashes
  of Python 3.12 and 3.13 agree.
  """
  tree = ast.parse(text)
  for node in ast.walk(tree):
    body = getattr(node, 'body', None)
    if isinstance(body, list):
      node.body = [
        x
        for x in body
        if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))
      ]
  return hashlib.sha256(''.join(_parts(tree)).encode()).hexdigest()


def _parts(node: Any) -> Iterator[str]:
  """Yields the parts of a syntax tree as text."""
  if isinstance(node, ast.AST):
    yield f'{type(node).__name__}('
    for name in node._fields:
      value = getattr(node, name, None)
      if value is not None and value != []:
        yield f'{name}='
        yield from _parts(value)
    yield ')'
  elif isinstance(node, list):
    for x in node:
      yield from _parts(x)
      yield ','
  else:
    yield repr(node)
