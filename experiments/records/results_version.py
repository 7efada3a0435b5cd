"""The results version, and code from outside the project.

A person raises `RESULTS_VERSION` when the same settings give other results;
`tests/golden_test.py` fails where that is forgotten. Points of another version
are decoded again. Points of a rule, metric or task from outside are named by
the hash of its file, too.
"""

import functools
import hashlib
import inspect
import pathlib
import sys
import sysconfig
import types
from typing import Any

RESULTS_VERSION = 2
_ROOT = pathlib.Path(__file__).parents[2]
_OURS = [_ROOT / x for x in ('cascades', 'experiments', 'configs')]


def name() -> str:
  """Returns the version as records and pages name it."""
  return f'results version {RESULTS_VERSION}'


def outside(*values: Any) -> list[str]:
  """Returns what makes functions, or objects with some, and is not from here.

  It is the module and hash of each file, and the numbers and texts they hold.
  """
  parts, waiting, visited = set(), list(values), []
  while waiting:
    value = inspect.unwrap(waiting.pop())
    if isinstance(value, types.ModuleType) or any(value is x for x in visited):
      continue
    visited.append(value)
    if isinstance(value, types.FunctionType):
      if not _is_ours(value):
        parts.add(f'{value.__module__} {_hash(value)}')
      cells = [x.cell_contents for x in value.__closure__ or ()]
      waiting += [*cells, *(value.__defaults__ or ())]
    elif isinstance(value, functools.partial):
      waiting += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
      waiting += [value.__func__, value.__self__]
    elif isinstance(value, list | tuple):
      waiting += value
    elif isinstance(value, dict):
      waiting += value.values()
    elif isinstance(value, str | int | float):
      parts.add(repr(value))
    elif isinstance(value, type):
      waiting += () if _is_ours(value) else vars(value).values()
    elif hasattr(value, '__dict__'):
      waiting += [type(value), *vars(value).values()]
  return sorted(parts)


def _is_ours(value: Any) -> bool:
  """True for functions and classes of this project and of Python itself."""
  module = sys.modules.get(value.__module__ or '')
  path = pathlib.Path(getattr(module, '__file__', None) or '')
  name = (value.__module__ or '').partition('.')[0]
  is_standard = name in sys.stdlib_module_names and path.is_relative_to(
    sysconfig.get_path('stdlib')
  )
  return is_standard or any(map(path.is_relative_to, _OURS))


def _hash(function: types.FunctionType) -> str:
  """Hashes the file of a function; its code if it was typed in."""
  try:
    source = pathlib.Path(inspect.getfile(function)).read_bytes()
  except OSError:
    source = repr(_code(function.__code__)).encode()
  return hashlib.sha256(source).hexdigest()


def _code(code: types.CodeType) -> list:
  """Returns what code does, without the place where it was typed in."""
  inner = [
    _code(x) if isinstance(x, types.CodeType) else x for x in code.co_consts
  ]
  return [code.co_code, code.co_names, inner]
