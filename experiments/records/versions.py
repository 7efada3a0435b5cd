"""Names the code that results are of: a version, or a hash of its source.

What is kept of a sweep is named after everything that can change it, the code
among them. A hash of the source alone would make a renamed variable another
code. So `results_version.json` holds a version, and the hash of the source that
was last shown to give that version's results: `python -m experiments.accept`
runs the test of fixed results and writes it. Source of that hash goes by the
version, any other source by its own hash. What is registered from outside of
the deciding modules adds a hash of its own source; see `outside_source`.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = pathlib.Path(__file__).with_name('results_version.json')
# Of the library, what only looks at models, answers and methods.
ONLY_LOOKS = (
  'cascades/lm_eval.py',
  'cascades/proof/',
  'cascades/sampler/agreement.py',
  'cascades/sampler/memory.py',
  'cascades/sampler/scoring.py',
)
# Around the library, what makes answers and records.
AROUND = ('experiments/sweeps/worker.py', 'experiments/sweeps/sequence.py')


@dataclasses.dataclass(frozen=True)
class Accepted:
  """What `results_version.json` holds.

  Attributes:
    version: RESULTS_VERSION; results of another version are other results.
    changelog: What changed with each version, a line for each.
    source: Hash of the source that last passed the test of fixed results.
  """

  version: int
  changelog: dict[str, str]
  source: str


def accepted() -> Accepted:
  """Reads the accepted version."""
  return Accepted(**json.loads(FILE.read_text(encoding='utf-8')))


def deciding(root: pathlib.Path = ROOT) -> dict[str, pathlib.Path]:
  """The modules that can change a result, by their paths below `root`.

  Everything in the library decides but `ONLY_LOOKS`, so that a new module is
  never left out.
  """
  names = [
    path.relative_to(root).as_posix()
    for path in (root / 'cascades').rglob('*.py')
  ]
  names = [name for name in names if not name.startswith(ONLY_LOOKS)]
  return {name: root / name for name in sorted((*names, *AROUND))}


def source_hash(root: pathlib.Path = ROOT) -> str:
  """Hashes the deciding modules, without comments and docstrings."""
  hashed = hashlib.sha256()
  for name, path in deciding(root).items():
    hashed.update(f'{name}\n{_statements(path.read_bytes())}\n'.encode())
  return hashed.hexdigest()


@functools.cache
def code() -> str:
  """Names the code of this process: by its version, or by its hash."""
  source = source_hash()
  if source == accepted().source:
    return f'results version {accepted().version}'
  return f'source {source}'


def is_version(name: str) -> bool:
  """Whether a name of `code` is that of a version."""
  return name.startswith('results version ')


def described(name: str) -> str:
  """A name of `code` in a few words, also of one that was kept long ago."""
  if is_version(name):
    return name
  kind, _, source = name.rpartition(' ')
  if kind == 'source':
    return f'source {source[:12]}, which no results version is of'
  return f'source {source[:12]}, from before results had a version'


@functools.cache
def _statements(text: bytes) -> str:
  """A hash of a module's syntax tree, the same on every version of Python.

  Without comments, docstrings and other texts that stand alone, and without
  fields that are empty, of which newer versions have more.
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
  """A syntax tree as text, part by part."""
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


# --- What is registered from outside ---


def outside_source(*registered: Any) -> str | None:
  """Hashes the source of functions that are of no deciding module.

  Args:
    *registered: Methods, tasks, functions: whatever a result depends on. Their
      fields, closures and defaults are gone through for functions, and the
      modules of these for modules of the same folder that they import.

  Returns:
    None where all are of deciding modules.
  """
  ours = set(deciding().values())
  found: dict[str, str] = {}
  for function in _functions(registered, set()):
    path = _path(function)
    if path in ours:
      continue
    name = f'{function.__module__}.{function.__qualname__}'
    found[name] = f'{_own_source(function, path)}\n{_constants(function)}'
  if not found:
    return None
  text = json.dumps(sorted(found.items()))
  return hashlib.sha256(text.encode()).hexdigest()


def _functions(values: Iterable, seen: set[int]) -> Iterator[Any]:
  """Functions and classes that values hold, however deep."""
  for value in values:
    if id(value) in seen:
      continue
    seen.add(id(value))
    if isinstance(value, functools.partial):
      yield from _functions([value.func, *value.args], seen)
      yield from _functions(value.keywords.values(), seen)
    elif isinstance(value, types.MethodType):
      yield from _functions([value.__func__, value.__self__], seen)
    elif isinstance(value, types.FunctionType):
      yield value
      yield from _functions(_held(value), seen)
    elif dataclasses.is_dataclass(value) or hasattr(value, '_fields'):
      kind = value if isinstance(value, type) else type(value)
      yield kind
      if kind is not value:
        names = getattr(value, '_fields', None)
        names = names or [f.name for f in dataclasses.fields(value)]
        yield from _functions([getattr(value, n) for n in names], seen)
    elif isinstance(value, list | tuple):
      yield from _functions(value, seen)
    elif isinstance(value, dict):
      yield from _functions(value.values(), seen)
    elif isinstance(getattr(value, '__wrapped__', None), types.FunctionType):
      # Compiled, or cached.
      yield from _functions([value.__wrapped__], seen)
    elif callable(value) and not isinstance(value, type):
      yield type(value)
      yield from _functions(getattr(value, '__dict__', {}).values(), seen)


def _held(function: types.FunctionType) -> list:
  """What a function brings along: its closure and its defaults."""
  cells = function.__closure__ or ()
  held = [cell.cell_contents for cell in cells if _is_filled(cell)]
  held += function.__defaults__ or ()
  held += (function.__kwdefaults__ or {}).values()
  return held


def _is_filled(cell: types.CellType) -> bool:
  try:
    _ = cell.cell_contents
  except ValueError:
    return False
  return True


def _path(function: Any) -> pathlib.Path | None:
  """The file of the module that something is defined in."""
  module = sys.modules.get(getattr(function, '__module__', None) or '')
  file = getattr(module, '__file__', None)
  if file is None and isinstance(function, types.FunctionType):
    file = function.__code__.co_filename
  path = pathlib.Path(file).resolve() if file else None
  return path if path is not None and path.is_file() else None


def _own_source(function: Any, path: pathlib.Path | None) -> str:
  """The source of the function's module and of its neighbours there."""
  if path is None:
    # Typed into a shell or a notebook.
    try:
      return inspect.getsource(function)
    except (OSError, TypeError):
      return repr(_compiled(getattr(function, '__code__', None)))
  if {'site-packages', 'dist-packages'} & {*path.parts}:
    # A package that was installed; its version tells it from others.
    return _statements(path.read_bytes())
  near, waiting = {}, [path]
  while waiting:
    path = waiting.pop()
    if path in near:
      continue
    near[path] = _statements(path.read_bytes())
    waiting += _imported_nearby(path)
  return '\n'.join(near[path] for path in sorted(near))


def _compiled(code: Any) -> Any:
  """What a compiled function does, without where it was compiled."""
  if not isinstance(code, types.CodeType):
    return code
  constants = [_compiled(constant) for constant in code.co_consts]
  return code.co_code.hex(), code.co_names, constants


def _imported_nearby(path: pathlib.Path) -> list[pathlib.Path]:
  """Files beside a module that it imports, by the names in its source."""
  names = []
  for node in ast.walk(ast.parse(path.read_bytes())):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names += [node.module or '', *(alias.name for alias in node.names)]
  files = [path.with_name(f'{name.rpartition(".")[2]}.py') for name in names]
  ours = set(deciding().values())
  return [file for file in files if file.is_file() and file not in ours]


def _constants(function: Any) -> str:
  """Numbers and texts that a function brings along."""
  if not isinstance(function, types.FunctionType):
    return ''
  return repr(
    [
      value.tolist() if isinstance(value, np.ndarray) else value
      for value in _held(function)
      if isinstance(
        value, bool | int | float | str | bytes | np.generic | np.ndarray
      )
    ]
  )
