"""Hashes of methods, tasks and plug-ins from outside the hashed source.

The hashed source is `versions.deciding_modules`, which can change results.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import pathlib
import pkgutil
import sys
import sysconfig
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades.config import DecodingConfig
from cascades.drafters.drafter_kinds import DRAFTERS
from cascades.methods import Method
from cascades.methods.registry import is_builtin
from cascades.registries import split
from cascades.verification_config import VERIFICATIONS
from experiments.records import versions
from experiments.tasks import TASKS, harness_tasks

_STDLIB = pathlib.Path(sysconfig.get_paths()['stdlib']).resolve()


def hash_external(*registered: Any) -> str | None:
  """Hashes methods and tasks from outside `versions.deciding_modules`.

  The hash of a function covers its code, the source of its module, the source
  of modules in the same folder that its module imports, and the values it
  refers to: closures, defaults, arguments of a partial, fields, arrays.
  """
  parts = []
  for value in registered:
    if isinstance(value, Method):
      if not is_builtin(value):
        parts.append(_describe(value, set()))
    elif isinstance(value, harness_tasks.HarnessTask):
      parts.append(value.identity)
    elif not _is_library_task(value):
      parts.append(_describe(value, set()))
  if not parts:
    return None
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def used_plugins(config: DecodingConfig, drafter: str) -> list[Any]:
  """Lists what other packages' plug-ins add to decoding."""
  used = [
    (VERIFICATIONS, config.verification),
    (DRAFTERS, drafter),
  ]
  plugins = []
  for registry, spec in used:
    name, _ = split(spec)
    if name not in registry or registry.is_builtin(name):
      continue
    entry = registry.get(name)
    plugins += [entry, registry.origin(name)]
    if registry is VERIFICATIONS and entry.decide:
      plugins.append(pkgutil.resolve_name(entry.decide))
  return plugins


@functools.cache
def _deciding_paths() -> frozenset[pathlib.Path]:
  """Returns the files of the modules that can change a result."""
  return frozenset(versions.deciding_modules().values())


def _is_library_task(value: Any) -> bool:
  """Returns True for a library task with any `max_new_tokens`."""
  name = getattr(value, 'name', None)
  if name not in TASKS or not TASKS.is_builtin(name):
    return False
  builtin = TASKS[name]
  if type(value) is not type(builtin):
    return False
  changes = dict(max_new_tokens=builtin.max_new_tokens)
  return dataclasses.replace(value, **changes) == builtin


def _parts_of(value: Any) -> list:
  """Lists the parts of a value; plain values and classes have none."""
  if isinstance(value, type | types.ModuleType | str | bytes):
    return []
  if isinstance(value, functools.partial):
    return [value.func, *value.args, value.keywords]
  if isinstance(value, types.MethodType):
    return [value.__func__, value.__self__]
  if isinstance(value, types.FunctionType):
    return _captured(value)
  if isinstance(value, dict):
    items = sorted(value.items(), key=lambda item: repr(item[0]))
    return [part for item in items for part in item]
  if isinstance(value, list | tuple):
    return list(value)
  if isinstance(value, set | frozenset):
    return sorted(value, key=repr)
  if hasattr(value, '__wrapped__'):
    # A function in a wrapper of `jax.jit` or `functools.cache`.
    return [value.__wrapped__]
  if hasattr(value, '__dict__'):
    return [value.__dict__]
  text = repr(value)
  return [] if '0x' in text else [text]


def _describe(value: Any, visited: set[int]) -> Any:
  """Describes a value as JSON can hold it, the same in every process."""
  if value is None or isinstance(value, bool | int | float | str | bytes):
    return repr(value)
  if isinstance(value, np.generic | np.ndarray | jax.Array):
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
      value = jax.random.key_data(value)
    array = np.asarray(value)
    bits = hashlib.sha256(array.tobytes()).hexdigest()
    return [str(array.dtype), list(array.shape), bits]
  if id(value) in visited:
    # A value that occurs again, perhaps in itself, is described once.
    return 'above'
  visited.add(id(value))
  parts = [type(value).__qualname__]
  kind = value if isinstance(value, type | types.FunctionType) else type(value)
  if isinstance(value, type | types.ModuleType | types.FunctionType):
    parts.append(getattr(value, '__qualname__', value.__name__))
  path = _path(kind)
  # Built-in types have no source.
  if path not in _deciding_paths() and kind.__module__ != 'builtins':
    # Two functions of one module may have one name.
    parts.append(_compiled(getattr(kind, '__code__', None)))
    parts.append(_module_source(kind, path))
  return [*parts, *(_describe(part, visited) for part in _parts_of(value))]


def _captured(function: types.FunctionType) -> list:
  """Lists what a function captures: closure, defaults, global values."""
  cells = function.__closure__ or ()
  captured = [cell.cell_contents for cell in cells if _is_filled(cell)]
  captured += function.__defaults__ or ()
  captured += (function.__kwdefaults__ or {}).values()
  if _path(function) is None:
    names = function.__code__.co_names
    values = [function.__globals__.get(name) for name in names]
    captured += [x for x in values if not isinstance(x, types.ModuleType)]
  return captured


def _is_filled(cell: types.CellType) -> bool:
  """Returns True if a cell of a closure has a value."""
  try:
    _ = cell.cell_contents
  except ValueError:
    return False
  return True


def _path(function: Any) -> pathlib.Path | None:
  """Returns the file of the module that defines something, if any."""
  module = sys.modules.get(getattr(function, '__module__', None) or '')
  file = getattr(module, '__file__', None)
  if file is None and isinstance(function, types.FunctionType):
    file = function.__code__.co_filename
  path = pathlib.Path(file).resolve() if file else None
  return path if path is not None and path.is_file() else None


def _module_source(function: Any, path: pathlib.Path | None) -> Any:
  """Hashes the source of a function's module and of its local imports."""
  if path is None:
    # A function that was defined in a shell or a notebook.
    try:
      return inspect.getsource(function)
    except (OSError, TypeError):
      return _compiled(getattr(function, '__code__', None))
  if path.suffix != '.py' or path.is_relative_to(_STDLIB):
    # The version of Python or of the package identifies such code.
    return path.name
  if {'site-packages', 'dist-packages'} & {*path.parts}:
    return versions.hash_syntax(path.read_bytes())
  hashes, waiting = {}, [path]
  while waiting:
    path = waiting.pop()
    if path not in hashes:
      hashes[path] = versions.hash_syntax(path.read_bytes())
      waiting += _imported_nearby(path)
  return [hashes[path] for path in sorted(hashes)]


def _compiled(code: Any) -> Any:
  """Describes compiled code, without the place it was compiled at."""
  if isinstance(code, frozenset):
    # The order of a set differs between processes.
    return sorted(map(repr, code))
  if not isinstance(code, types.CodeType):
    return repr(code)
  constants = [_compiled(constant) for constant in code.co_consts]
  return [code.co_code.hex(), list(code.co_names), constants]


def _imported_nearby(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a module's folder that its source imports."""
  names = []
  for node in ast.walk(ast.parse(path.read_bytes())):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names += [node.module or '', *(alias.name for alias in node.names)]
  files = [path.with_name(f'{name.rpartition(".")[2]}.py') for name in names]
  return [
    file for file in files if file.is_file() and file not in _deciding_paths()
  ]
