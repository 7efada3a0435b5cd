"""The results version, and code from outside the project.

A person raises `RESULTS_VERSION` when the same settings give other results;
`tests/golden_test.py` fails where that is forgotten. Points of another version
are decoded again. Points of a rule, metric or task from outside are named by
the hash of its file, too.
"""

import functools
import hashlib
import inspect
import marshal
import pathlib
import sys
import types
from typing import Any

RESULTS_VERSION = 2
_OURS = {'cascades', 'experiments', 'configs', *sys.stdlib_module_names}


def name() -> str:
  """Returns the version as records and pages name it."""
  return f'results version {RESULTS_VERSION}'


def outside(*values: Any) -> list[str]:
  """Returns module and hash of each file from outside that makes the values.

  Args:
    *values: Functions, and objects that hold functions.
  """
  files, waiting, visited = set(), list(values), []
  while waiting:
    value = inspect.unwrap(waiting.pop())
    module = getattr(value, '__module__', None) or ''
    is_ours = module.partition('.')[0] in _OURS
    if isinstance(value, types.ModuleType) or any(value is x for x in visited):
      continue
    visited.append(value)
    if isinstance(value, types.FunctionType):
      if not is_ours:
        files.add(f'{module} {_hash(value)}')
      waiting += [x.cell_contents for x in value.__closure__ or ()]
    elif isinstance(value, functools.partial):
      waiting += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
      waiting += [value.__func__, value.__self__]
    elif isinstance(value, list | tuple):
      waiting += value
    elif isinstance(value, type):
      waiting += () if is_ours else vars(value).values()
    elif hasattr(value, '__dict__'):
      waiting += [type(value), *vars(value).values()]
  return sorted(files)


def _hash(function: types.FunctionType) -> str:
  """Hashes the file of a function; its code if it was typed in."""
  try:
    source = pathlib.Path(inspect.getfile(function)).read_bytes()
  except OSError:
    source = marshal.dumps(function.__code__)
  return hashlib.sha256(source).hexdigest()
